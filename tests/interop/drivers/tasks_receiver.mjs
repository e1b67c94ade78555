// Answers questions that a server sends as tasks, with the receiver of @modelcontextprotocol/ext-tasks, and prints facts.
//
//     node tasks_receiver.mjs NODE_MODULES TOOL http URL
//     node tasks_receiver.mjs NODE_MODULES TOOL stdio COMMAND ARGUMENT...
//
// TOOL is "ask_as_task", which asks within a plain call, or "ask_as_task_in_a_task".

import { pathToFileURL } from "node:url";

const [modules, tool, kind, target, ...args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${modules}/@modelcontextprotocol/${file}`).href);
const { Client, StreamableHTTPClientTransport } = await load("client/dist/index.mjs");
const { StdioClientTransport } = await load("client/dist/stdio.mjs");
const { bindTaskReceiver } = await load("ext-tasks/dist/receiver/index.js");

const ANYTHING = { "~standard": { version: 1, vendor: "interop", validate: (value) => ({ value }) } };
const asked = [];
const client = new Client(
  { name: "interop", version: "1.0.0" },
  {
    versionNegotiation: { mode: "legacy" },
    capabilities: {
      elicitation: { form: {} },
      sampling: {},
      tasks: { list: {}, cancel: {}, requests: { sampling: { createMessage: {} }, elicitation: { create: {} } } },
    },
  },
);
const receiver = bindTaskReceiver(client, {
  methods: { "elicitation/create": true, "sampling/createMessage": true },
  pollIntervalMs: 50,
  elicitation: async ({ params }, { taskId }) => {
    asked.push([params.message, params.task, Boolean(taskId)]);
    return { action: "accept", content: { wood: "oak" } };
  },
  sampling: async ({ params }, { taskId }) => {
    asked.push([params.messages[0].content.text, params.task, Boolean(taskId)]);
    return { role: "assistant", content: { type: "text", text: "Morning Light" }, model: "interop" };
  },
});
const transport =
  kind === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args });
await client.connect(transport);
const call = { name: tool, arguments: { picture: "attic" } };
let result;
if (tool === "ask_as_task") {
  result = await client.request({ method: "tools/call", params: call }, ANYTHING);
} else {
  const { task } = await client.request({ method: "tools/call", params: { ...call, task: { ttl: 60_000 } } }, ANYTHING);
  result = await client.request({ method: "tasks/result", params: { taskId: task.taskId } }, ANYTHING);
}
receiver.close();
await client.close();
console.log(JSON.stringify({ text: result.content[0].text, asked }));
