// Logs in to a protected server with the official TypeScript client, and prints what came of it as one line of JSON.
//
//     node ts_login.mjs CLIENT_PACKAGE URL
//
// The person at the browser is played here: open the page, fill the form in, note where the answer leads.

import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = await import(pathToFileURL(`${folder}/dist/index.mjs`).href);

const kept = {};
let answer;
let logins = 0;

async function logIn(place) {
  logins += 1;
  const page = await fetch(place);
  const cookie = page.headers.get("set-cookie").split(";")[0];
  const fields = new URLSearchParams({ username: "ann", password: "correct horse", action: "allow" });
  for (const [, name, value] of (await page.text()).matchAll(/<input type="hidden" name="(\w+)" value="([^"]*)">/g))
    fields.set(name, value);
  const headers = { cookie, "content-type": "application/x-www-form-urlencoded" };
  const body = fields.toString();
  const done = await fetch(new URL(place.pathname, place), { method: "POST", headers, body, redirect: "manual" });
  answer = new URL(done.headers.get("location")).searchParams;
}

const provider = {
  redirectUrl: "http://127.0.0.1:3997/callback",
  clientMetadata: {
    client_name: "interop",
    redirect_uris: ["http://127.0.0.1:3997/callback"],
    grant_types: ["authorization_code", "refresh_token"],
    token_endpoint_auth_method: "none",
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  codeVerifier: () => kept.verifier,
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  redirectToAuthorization: logIn,
};

// The client gives up when a person is needed; whoever uses it ends the login and begins again.
async function withLogin(use) {
  for (let round = 0; ; round += 1) {
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
    const client = new Client({ name: "interop", version: "1.0.0" });
    try {
      await client.connect(transport);
      const result = await use(client);
      await client.close();
      return result;
    } catch (error) {
      if (round > 2 || answer === undefined) throw error;
      const found = answer;
      answer = undefined;
      await transport.finishAuth(found);
    }
  }
}

const textOf = (result) => result.content[0].text;
const tools = await withLogin(async (client) => (await client.listTools()).tools.map((tool) => tool.name));
const who = await withLogin(async (client) => textOf(await client.callTool({ name: "who", arguments: {} })));
const erase = await withLogin(async (client) => textOf(await client.callTool({ name: "erase", arguments: {} })));
console.log(JSON.stringify({ tools, who, erase, logins }));
process.exit(0); // clients that gave up leave something open
