// grpc-js, whose messages are made from the server's own descriptors.
"use strict";
const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, count, descriptors] = process.argv.slice(2);
const definition = loader.loadFileDescriptorSetFromBuffer(fs.readFileSync(descriptors), {longs: Number});
const {inference} = grpc.loadPackageDefinition(definition);
const client = new inference.GRPCInferenceService(address, grpc.credentials.createInsecure());

function request(id, values, shape) {
  const raw = Buffer.alloc(4 * values.length);
  values.forEach((value, at) => raw.writeFloatLE(value, 4 * at));
  const x = {name: "x", datatype: "FP32", shape};
  return {model_name: "double", id, inputs: [x], raw_input_contents: [raw]};
}

function infer(sent) {
  const deadline = new Date(Date.now() + 60_000);
  return new Promise((done, failed) =>
    client.ModelInfer(sent, {deadline}, (error, answer) => error ? failed(error) : done(answer)));
}

async function main() {
  const numbers = [...Array(Number(count)).keys()];
  const answers = await Promise.all(numbers.map(i => infer(request(`own-${i}`, [i, i + 0.5], [1, 2]))));
  const read = ({id, raw_output_contents: [raw]}) => [id, [raw.readFloatLE(0), raw.readFloatLE(4)]];
  const refused = await infer(request("", [1], [3])).catch(error => grpc.status[error.code]);
  console.log(JSON.stringify([answers.map(read), refused]));
  client.close();
}

main();
