// Drives the studio with the experimental client of tasks of the official TypeScript SDK 1.x, and prints facts as JSON.
//
//     node tasks_ts1.mjs SDK_PACKAGE STEPS http URL
//     node tasks_ts1.mjs SDK_PACKAGE STEPS stdio COMMAND ARGUMENT...
//
// Its tasks are those of 2025-11-25. SDK_PACKAGE is the folder of @modelcontextprotocol/sdk.

import { pathToFileURL } from "node:url";

const [folder, steps, kind, target, ...args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${folder}/dist/esm/${file}`).href);
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { StdioClientTransport } = await load("client/stdio.js");
const schemas = await load("types.js");

const ANSWERS = { wood: "oak", height: 150, wall: "north" };
const RELATED = "io.modelcontextprotocol/related-task";
const person = { action: "accept", asked: [], related: [] };
const heard = []; // params of notifications/tasks/status

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const textOf = (result) => result.content[0].text;

async function until(condition) {
  for (const end = Date.now() + 30_000; !(await condition()); ) {
    if (Date.now() > end) throw new Error(`it did not become true: ${condition}`);
    await sleep(20);
  }
}

async function errorOf(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { code: error.code, message: error.message, data: error.data };
  }
}

const client = new Client(
  { name: "interop", version: "1.0.0" },
  { capabilities: { elicitation: { form: {} }, sampling: {} } },
);
client.setRequestHandler(schemas.ElicitRequestSchema, ({ params }) => {
  const fields = Object.keys(params.requestedSchema.properties).sort();
  person.asked.push([params.message, fields]);
  person.related.push(params._meta?.[RELATED]?.taskId ?? null);
  if (person.action !== "accept") return { action: person.action };
  return { action: "accept", content: Object.fromEntries(fields.map((name) => [name, ANSWERS[name]])) };
});
client.setRequestHandler(schemas.CreateMessageRequestSchema, ({ params }) => {
  person.asked.push([params.messages[0].content.text]);
  person.related.push(params._meta?.[RELATED]?.taskId ?? null);
  return { role: "assistant", content: { type: "text", text: "Morning Light" }, model: "interop" };
});
client.setNotificationHandler(schemas.TaskStatusNotificationSchema, ({ params }) => {
  heard.push(params);
});
const tasks = client.experimental.tasks;

const call = async (name, given = {}) => textOf(await client.callTool({ name, arguments: given }));

// Starts a task, and follows it with the generator of the SDK. `onState` is called with each state.
async function follow(name, given, { onState = () => {}, ...options } = {}) {
  const seen = { states: [] };
  const stream = tasks.callToolStream({ name, arguments: given }, undefined, { task: { ttl: 90_000 }, ...options });
  for await (const message of stream) {
    if (message.type === "taskCreated") seen.created = message.task;
    else if (message.type === "taskStatus") {
      seen.states.push(message.task);
      await onState(message.task);
    } else if (message.type === "result") seen.result = message.result;
    else seen.error = { code: message.error.code, message: message.error.message };
  }
  return seen;
}

// Starts a task, and returns what the server answers.
const start = (name, given, options = {}) =>
  client.request({ method: "tools/call", params: { name, arguments: given } }, schemas.CreateTaskResultSchema, {
    task: { ttl: 90_000 },
    ...options,
  });

async function quick() {
  const created = await start("develop", { photo: "attic" });
  const { taskId } = created.task;
  await until(async () => (await tasks.getTask(taskId)).status === "completed");
  const result = await tasks.getTaskResult(taskId, schemas.CallToolResultSchema);
  const followed = await follow("develop", { photo: "cellar" });
  return { created, final: await tasks.getTask(taskId), result, followed };
}

async function slow() {
  let layer = 1;
  const onState = async ({ statusMessage }) => {
    if (statusMessage !== `painting (${layer}/2)`) return;
    layer += 1;
    await call("go_on", { picture: "attic" });
  };
  const { states, result } = await follow("render", { picture: "attic" }, { onState });
  return { messages: [...new Set(states.map(({ statusMessage }) => statusMessage ?? null))], states, result };
}

async function ask() {
  const { states, result } = await follow("frame", { picture: "attic" });
  const facts = { waiting: states.at(-1), accept: textOf(result) };
  person.action = "decline";
  facts.decline = textOf((await follow("frame", { picture: "cellar" })).result);
  person.action = "accept";
  facts.two = textOf((await follow("hang", { picture: "attic" })).result);
  facts.sample = textOf((await follow("name_it", { picture: "attic" })).result);
  return { ...facts, asked: [...person.asked], related: [...person.related] };
}

async function cancel() {
  const counts = "count_stopped" in support;
  const before = counts ? Number(await call("count_stopped")) : 0;
  let cancelled;
  const onState = async ({ taskId, status, statusMessage }) => {
    if (status === "working" && statusMessage === "painting (1/2)") cancelled = await tasks.cancelTask(taskId);
  };
  const { states, error } = await follow("render", { picture: "cellar" }, { onState });
  if (counts) await until(async () => Number(await call("count_stopped")) > before);
  const { taskId } = cancelled;
  return {
    cancelled,
    final: states.at(-1),
    error,
    again: await errorOf(tasks.cancelTask(taskId)),
    result: await errorOf(tasks.getTaskResult(taskId, schemas.CallToolResultSchema)),
  };
}

async function fail() {
  const facts = {};
  for (const [name, given] of [["spill", { colour: "red" }], ["tear", { paper: "sheet" }]]) {
    const { states, error } = await follow(name, given);
    const final = states.at(-1);
    const result = await errorOf(tasks.getTaskResult(final.taskId, schemas.CallToolResultSchema));
    facts[name] = { final, error, result };
  }
  return facts;
}

const required = async () => textOf((await follow("engrave", { text: "Ada" })).result);

// Calls tools without asking for a task.
async function plainly() {
  const frame = await call("frame", { picture: "hall" });
  return { sum: await call("add", { a: 2, b: 3 }), frame, related: person.related.at(-1) };
}

async function refused() {
  return {
    required: await errorOf(client.callTool({ name: "engrave", arguments: { text: "Ada" } })),
    raw_required: await errorOf(client.request(plainCall, schemas.CallToolResultSchema)),
    forbidden: await errorOf(start("add", { a: 2, b: 3 })),
    unknown: await errorOf(tasks.getTask("no-such-task-in-this-studio")),
    list: await errorOf(tasks.listTasks()),
  };
}

const plainCall = { method: "tools/call", params: { name: "engrave", arguments: { text: "Ada" } } };

// Follows a task by its notifications alone, on the stream of tasks/result. The token of the call hears the progress.
async function push() {
  const progress = [];
  const onprogress = ({ progress: done, total, message }) => progress.push([done, total, message]);
  const { task } = await start("dry", { picture: "attic" }, { onprogress });
  const told = () => heard.filter(({ taskId }) => taskId === task.taskId);
  const waiting = tasks.getTaskResult(task.taskId, schemas.CallToolResultSchema);
  for (const wanted of ["drying", "cooling"]) {
    await until(() => told().some(({ statusMessage }) => statusMessage?.startsWith(wanted)));
    await call("go_on", { picture: "attic" });
  }
  return { task: task.taskId, result: await waiting, heard: told(), progress };
}

const transport =
  kind === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args });
await client.connect(transport);
const { tools } = await client.listTools();
const support = Object.fromEntries(tools.map(({ name, execution }) => [name, execution?.taskSupport ?? null]));
const STEPS = { quick, slow, ask, cancel, fail, required, plainly, refused, push };
const facts = { version: schemas.LATEST_PROTOCOL_VERSION, capabilities: client.getServerCapabilities(), support, steps: {} };
for (const step of steps === "all" ? Object.keys(STEPS) : steps.split(",")) facts.steps[step] = await STEPS[step]();
await client.close();
console.log(JSON.stringify(facts));
