// An Express model; its error handler is Express' own.
const express = require("express");

const app = express();
app.use(express.json());

app.get("/", (request, response) => response.send("ready"));

app.post("/predict", async (request, response) => {
  await new Promise((resolve) => setTimeout(resolve, 10));
  const { instances } = request.body;
  if (instances.includes("bad")) throw new Error("a bug that one instance meets");
  response.json({ predictions: instances.map((instance) => ({ got: instance })) });
});

app.listen(Number(process.argv[2]), "127.0.0.1");
