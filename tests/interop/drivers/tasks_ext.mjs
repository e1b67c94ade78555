// Drives the studio with @modelcontextprotocol/ext-tasks, and prints facts as one line of JSON.
//
//     node tasks_ext.mjs NODE_MODULES v2 STEPS http URL
//     node tasks_ext.mjs NODE_MODULES v1 STEPS stdio COMMAND ARGUMENT...
//
// v2 are the tasks of 2026-07-28, v1 those of 2025-11-25. The same calls of the package serve both; what a host must add
// is in `rawDispatch` (v2) and `openResult` (v1).

import { pathToFileURL } from "node:url";

const [modules, generation, steps, kind, target, ...args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${modules}/@modelcontextprotocol/${file}`).href);
const { Client, StreamableHTTPClientTransport } = await load("client/dist/index.mjs");
const { StdioClientTransport } = await load("client/dist/stdio.mjs");
const ext = await load("ext-tasks/dist/client/index.js");
const { contributeTaskFilterV2 } = await load("ext-tasks/dist/core/v2/index.js");

const isV2 = generation === "v2";
const ANSWERS = { wood: "oak", height: 150, wall: "north" };
const INFO = { name: "interop", version: "1.0.0" };
const TASKS = { "io.modelcontextprotocol/tasks": {} };
const CAPABILITIES = { elicitation: { form: {} }, sampling: {}, ...(isV2 ? { extensions: TASKS } : {}) };
const ANYTHING = { "~standard": { version: 1, vendor: "interop", validate: (value) => ({ value }) } };
const person = { action: "accept", asked: [], contexts: [] };
const sent = []; // methods of the messages that were sent
const faults = []; // messages of errors that the package reports beside its results

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

const onInputRequest = ext.createApplicationInputHandler({
  elicitation: ({ params }, { scope, delivery }) => {
    const fields = Object.keys(params.requestedSchema.properties).sort();
    person.asked.push([params.message, fields]);
    person.contexts.push([scope, delivery]);
    if (person.action !== "accept") return { action: person.action };
    return { action: "accept", content: Object.fromEntries(fields.map((name) => [name, ANSWERS[name]])) };
  },
  sampling: ({ params }, { scope, delivery }) => {
    person.asked.push([params.messages[0].content.text]);
    person.contexts.push([scope, delivery]);
    return { role: "assistant", content: { type: "text", text: "Morning Light" }, model: "interop" };
  },
  roots: () => ({ roots: [] }),
});

// One connection: a client of the SDK, and a session of the package on it.
async function connect() {
  const transport =
    kind === "http"
      ? new StreamableHTTPClientTransport(new URL(target))
      : new StdioClientTransport({ command: target, args });
  const send = transport.send.bind(transport);
  transport.send = (message, options) => {
    sent.push(message.method);
    return send(message, options);
  };
  const client = new Client(INFO, {
    versionNegotiation: { mode: isV2 ? "auto" : "legacy" },
    capabilities: CAPABILITIES,
  });
  await client.connect(transport);
  const options = { endpointId: "studio", onInputRequest, onError: (error) => faults.push(error.message) };
  if (isV2) {
    const protocolVersion = client.getNegotiatedProtocolVersion();
    options.rawDispatch = rawDispatchOver(transport);
    options.v2RequestFraming = { protocolVersion, clientInfo: INFO, clientCapabilities: CAPABILITIES };
  }
  return { client, session: ext.createTaskSessionFromClient(client, options) };
}

// Sends requests whose results the SDK cannot read. They have ids that the SDK does not use.
function rawDispatchOver(transport) {
  let count = 0;
  const pending = new Map();
  const onward = transport.onmessage;
  transport.onmessage = (message, extra) => {
    const settle = pending.get(message.id);
    if (settle === undefined || message.method !== undefined) return onward(message, extra);
    pending.delete(message.id);
    settle("error" in message ? { kind: "error", error: message.error } : { kind: "result", result: message.result });
  };
  return (request, { signal } = {}) =>
    new Promise((resolve, reject) => {
      const id = `task-${(count += 1)}`;
      pending.set(id, resolve);
      transport.send({ jsonrpc: "2.0", id, ...request }, { requestSignal: signal }).catch(reject);
    });
}

const { client, session } = await connect();
const prefer = { task: { preference: "prefer", retentionMs: 90_000 } };

async function call(name, given = {}) {
  const execution = await session.callTool(name, given);
  return textOf(ext.resultFromTaskOutcome((await execution.settle()).outcome));
}

const start = (name, given) => session.callTool(name, given, prefer);
const snapshot = (id) => session.task(id).snapshot();

// Follows a task to its end. In v1, the package only polls: the host must open tasks/result, which brings the questions.
async function settle(execution, onTask = () => {}, its = client) {
  const states = [];
  const opened = isV2 ? undefined : openResult(execution.handle.taskId, its);
  const onEvent = async ({ type, task }) => {
    if (type !== "task") return;
    states.push(task.raw);
    await onTask(task);
  };
  const { outcome } = await execution.settle({ onEvent });
  await opened;
  return { states, status: outcome.status, result: outcome.result, error: plainError(outcome.error) };
}

const openResult = (taskId, its = client) =>
  errorOf(its.request({ method: "tasks/result", params: { taskId } }, ANYTHING));
const plainError = (error) => error && { code: error.code, message: error.message, data: error.data };

async function quick() {
  const execution = await start("develop", { photo: "attic" });
  const handle = { kind: execution.kind, ...execution.handle };
  const settled = await settle(execution);
  return { handle, first: settled.states[0], final: (await snapshot(handle.taskId)).raw, ...settled };
}

async function slow() {
  let layer = 1;
  const { states, result } = await settle(await start("render", { picture: "attic" }), async ({ statusMessage }) => {
    if (statusMessage !== `painting (${layer}/2)`) return;
    layer += 1;
    await call("go_on", { picture: "attic" });
  });
  return { messages: [...new Set(states.map(({ statusMessage }) => statusMessage ?? null))], result };
}

async function ask() {
  const execution = await start("frame", { picture: "attic" });
  const unheard = isV2 ? undefined : await pollsOnly(execution.handle.taskId);
  const { states, result } = await settle(execution);
  const facts = { unheard, statuses: [...new Set(states.map(({ status }) => status))], accept: textOf(result) };
  person.action = "decline";
  facts.decline = textOf((await settle(await start("frame", { picture: "cellar" }))).result);
  person.action = "accept";
  facts.two = textOf((await settle(await start("hang", { picture: "attic" }))).result);
  facts.sample = textOf((await settle(await start("name_it", { picture: "attic" }))).result);
  return { ...facts, asked: [...person.asked], contexts: [...person.contexts] };
}

// v1: what the package asks the user while its task wants an answer, and it has polled five times.
async function pollsOnly(taskId) {
  await until(async () => (await snapshot(taskId)).status === "input_required");
  sent.length = 0;
  await until(() => sent.filter((method) => method === "tasks/get").length >= 5);
  return [...person.asked];
}

// v2: the host answers one of two questions, and then the other one, without the package's handler.
async function byHand() {
  if (!isV2) return undefined;
  const execution = await start("hang", { picture: "hall" });
  const { taskId } = execution.handle;
  await execution.detach();
  const task = session.task(taskId);
  const open = [];
  const answered = { height: false, wall: false };
  for (const name of ["height", "wall"]) {
    await until(async () => (await task.snapshot()).status === "input_required");
    const { inputRequests } = (await task.snapshot()).raw;
    open.push(Object.keys(inputRequests).length);
    const key = Object.keys(inputRequests).find((one) => name in inputRequests[one].params.requestedSchema.properties);
    await task.update({ [key]: { action: "accept", content: { [name]: ANSWERS[name] } } });
    answered[name] = !(key in ((await task.snapshot()).raw.inputRequests ?? {}));
  }
  return { open, answered, text: textOf(ext.resultFromTaskOutcome(await task.result())) };
}

async function cancel() {
  const counts = "count_stopped" in support;
  const before = counts ? Number(await call("count_stopped")) : 0;
  const execution = await start("render", { picture: "cellar" });
  const { taskId } = execution.handle;
  await until(async () => (await snapshot(taskId)).statusMessage === "painting (1/2)");
  await execution.cancel();
  const { status } = await execution.result();
  if (counts) await until(async () => Number(await call("count_stopped")) > before);
  return { status, final: (await snapshot(taskId)).raw, again: await errorOf(session.task(taskId).cancel()) };
}

async function fail() {
  const facts = {};
  for (const [name, given] of [["spill", { colour: "red" }], ["tear", { paper: "sheet" }]]) {
    const execution = await start(name, given);
    const { status, result, error } = await settle(execution);
    const { taskId } = execution.handle;
    const read = isV2 ? undefined : await openResult(taskId);
    facts[name] = { status, result, error, final: (await snapshot(taskId)).raw, read };
  }
  return facts;
}

// A task is taken up by its stored reference, and its question answered: over HTTP by another connection.
async function resume() {
  let stored;
  const first = await start("frame", { picture: "stairs" });
  await first.handoff((reference) => (stored = JSON.stringify(reference)));
  await first.result(); // now the task has no owner here
  const other = kind === "http" ? await connect() : { client, session };
  const execution = await other.session.resumeTask(JSON.parse(stored));
  const { result } = await settle(execution, () => {}, other.client);
  if (other.client !== client) {
    await other.session.close();
    await other.client.close();
  }
  return { stored: JSON.parse(stored), text: textOf(result) };
}

// Follows a task by notifications alone: the poll interval of the task is ten minutes. In v2 they come on a listen
// stream, and the package needs nothing else. In v1 they come on the stream of tasks/result, which the host has opened.
async function push() {
  const execution = await start("dry", { picture: "attic" });
  const { taskId } = execution.handle;
  const heard = [];
  const onNotification = client.fallbackNotificationHandler;
  client.fallbackNotificationHandler = async (notification) => {
    if (notification.method.startsWith("notifications/tasks")) heard.push(notification);
    await onNotification(notification);
  };
  sent.length = 0;
  const stream = isV2 ? await client.listen(contributeTaskFilterV2({}, [taskId]).notifications) : undefined;
  const opened = isV2 ? undefined : openResult(taskId);
  for (const wanted of ["drying", "cooling"]) {
    await until(() => heard.some(({ params }) => params.statusMessage?.startsWith(wanted)));
    await client.request({ method: "tools/call", params: { name: "go_on", arguments: { picture: "attic" } } }, ANYTHING);
  }
  const { result } = isV2 ? await execution.result() : await opened;
  await stream?.close();
  await execution.detach();
  client.fallbackNotificationHandler = onNotification;
  return { task: taskId, heard, polls: sent.filter((method) => method === "tasks/get").length, text: textOf(result) };
}

// A tool asks while it is a call, and becomes a task some time after the answer.
async function late() {
  const execution = await start("restore", { picture: "tower" });
  const { result } = await settle(execution);
  const asked = person.asked.filter(([message]) => message === "Which wood for tower?").length;
  return { kind: execution.kind, text: textOf(result), asked };
}

const required = async () => textOf((await settle(await start("engrave", { text: "Ada" }))).result);
const immediate = async () => (await start("sketch", { model: "cat" })).kind;
const plainly = async () => ({ sum: await call("add", { a: 2, b: 3 }) });

async function refused() {
  return {
    unknown: await errorOf(session.task("no-such-task-in-this-studio").snapshot()),
    list: isV2 ? undefined : await errorOf(client.request({ method: "tasks/list", params: {} }, ANYTHING)),
  };
}

const { tools } = await client.listTools();
const support = Object.fromEntries(tools.map(({ name, execution }) => [name, execution?.taskSupport ?? null]));
const STEPS = { quick, slow, ask, by_hand: byHand, late, cancel, fail, required, immediate, plainly, resume, refused, push };
const facts = {
  version: client.getNegotiatedProtocolVersion(),
  capabilities: client.getServerCapabilities(),
  understood: session.capabilities,
  support,
  steps: {},
};
for (const step of steps === "all" ? Object.keys(STEPS) : steps.split(",")) facts.steps[step] = await STEPS[step]();
facts.faults = faults;
await session.close();
await client.close();
console.log(JSON.stringify(facts));
