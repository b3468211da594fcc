"""A page to try the served methods: each operation of `/openapi.json` with a request to edit and to send.

The page loads nothing but `/openapi.json`, and its content security policy allows nothing else.
"""

from __future__ import annotations

from penstock_wire import http

DOCS_PATH = "/docs"

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>penstock run</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem }
  section { border: 1px solid #8888; border-radius: .5rem; padding: 1rem; margin: 1rem 0 }
  h2 { font: 600 1.1rem ui-monospace, monospace; margin: 0 0 .5rem }
  textarea { width: 100%; box-sizing: border-box; font: .9rem ui-monospace, monospace }
  textarea, pre { line-height: 1.4; tab-size: 2 }
  button { font: inherit; font-size: .9rem; margin: .5rem .5rem 0 0; padding: .2rem .8rem }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem; margin: .5rem 0 0 }
  :root { color-scheme: light dark }
</style>
<h1></h1>
<p>Written from <a href="openapi.json">openapi.json</a>. A request holds items in <code>instances</code>.
gRPC clients of Triton and KServe call this port, too: a model's name is a method's.</p>
<main></main>
<script>
"use strict";

// An example of what a schema describes; of anything, a number.
function example(schema, all, depth = 0) {
  if (depth > 8) return null;
  if (!schema) return 1;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1);
  if ("default" in schema) return schema.default;
  if ("const" in schema) return schema.const;
  if (schema.enum) return schema.enum[0];
  if (schema.examples && schema.examples.length) return schema.examples[0];
  const one = (schema.anyOf || schema.oneOf || schema.allOf || [])[0];
  if (one) return example(one, all, depth + 1);
  switch (schema.type) {
    case "string": return "text";
    case "integer": return Math.max(1, schema.minimum ?? 1);
    case "number": return 1.5;
    case "boolean": return true;
    case "array": return [example(schema.items, all, depth + 1)];
    case "object": return Object.fromEntries(Object.entries(schema.properties || {})
      .map(([name, value]) => [name, example(value, all, depth + 1)]));
    case "null": return null;
    default: return 1;
  }
}

// What a server-timing field says, for people.
function spoken(timing) {
  return timing.split(",").map(part => {
    const [name, ...more] = part.trim().split(";");
    const members = Object.fromEntries(more.map(each => each.split("=")));
    const items = members.desc ? ` of ${members.desc.replaceAll('"', "")}` : "";
    return `${name}${items}${members.dur ? `: ${(+members.dur).toFixed(1)} ms` : ""}`;
  }).join(", ");
}

// A value as JSON, lists of numbers and texts in one line. (A text in JSON has no line breaks.)
function rendered(value) {
  return JSON.stringify(value, null, 2).replace(/\\[\\n([^\\[\\]{}]*?)\\n *\\]/g,
    (_, inner) => `[${inner.trim().replace(/\\n */g, " ")}]`);
}

// A whole answer: a problem as it is easiest to read, predictions as they came, each digit of them.
function tidy(text, type) {
  try {
    return type === "application/problem+json" ? rendered(JSON.parse(text)) : text.trimEnd();
  } catch { return text; }
}

// Sends a request and shows its answer as it comes.
async function send(path, accept, body, shown) {
  const began = performance.now();
  shown.textContent = "…";
  try {
    const headers = {"content-type": "application/json", accept};
    const answer = await fetch(path, {method: "POST", headers, body});
    const timing = answer.headers.get("server-timing");
    const head = `${answer.status} ${answer.statusText}${timing ? "\\n" + spoken(timing) : ""}\\n\\n`;
    const type = answer.headers.get("content-type") ?? "";
    let text = "";
    shown.textContent = head;
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    for (let part; !(part = await reader.read()).done;) {
      text += decoder.decode(part.value, {stream: true});
      shown.textContent = head + text;
    }
    shown.textContent = `${head}${tidy(text, type)}\\n\\n${(performance.now() - began).toFixed(1)} ms in all`;
  } catch (error) {
    shown.textContent += `${error}`;
  }
}

function make(tag, parent, fields = {}) {
  return parent.appendChild(Object.assign(document.createElement(tag), fields));
}

async function begin() {
  const served = await (await fetch("openapi.json")).json();
  document.title = document.querySelector("h1").textContent = served.info.title;
  for (const [path, {post}] of Object.entries(served.paths)) {
    const section = make("section", document.querySelector("main"));
    const name = path === "/" ? ` (${post.operationId})` : "";
    make("h2", section, {textContent: `POST ${path}${name}`});
    const schema = post.requestBody.content["application/json"].schema;
    const text = rendered(example(schema, served.components.schemas));
    const rows = text.split("\\n").length + 1;
    const body = make("textarea", section, {value: text, rows, spellcheck: false, ariaLabel: "body"});
    const buttons = make("div", section);
    for (const accept of Object.keys(post.responses["200"].content)) {
      const button = make("button", buttons, {textContent: `Send (${accept})`});
      button.onclick = () => send(path, accept, body.value, shown);
    }
    const shown = make("pre", section);
  }
}

begin().catch(error => { document.querySelector("main").textContent = error; });
</script>
</html>
"""


def response() -> http.Response:
    """Answer with the page."""
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", _POLICY.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    )
    return http.Response(status=200, headers=headers, body=_PAGE.encode())
