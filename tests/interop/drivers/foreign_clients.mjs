// Lists the kitchen's tools and calls them with @ai-sdk/mcp, without a model.
//     node foreign_clients.mjs NODE_MODULES http URL | stdio COMMAND...
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

const [, , modules, way, ...target] = process.argv
const folder = join(modules, '@ai-sdk', 'mcp')
const require = createRequire(join(folder, 'package.json'))
const at = (name) => import(pathToFileURL(require.resolve(name)).href)
const { createMCPClient } = await at('@ai-sdk/mcp')

let transport
if (way === 'http') {
  transport = { type: 'http', url: target[0] }
} else {
  const { Experimental_StdioMCPTransport: Stdio } = await at('@ai-sdk/mcp/mcp-stdio')
  transport = new Stdio({ command: target[0], args: target.slice(1) })
}
const client = await createMCPClient({ transport })
const facts = {}
try {
  const tools = await client.tools()
  facts.tools = Object.keys(tools)
  const calls = { greet: { name: 'Ada', times: 2 }, brew: { leaf: { name: 'oolong', grams: 7 } }, spill: {}, which: {} }
  for (const [name, given] of Object.entries(calls)) {
    try {
      facts[name] = JSON.stringify(await tools[name].execute(given, { toolCallId: name, messages: [] }))
    } catch (error) {
      facts[name] = `error: ${error.message}`
    }
  }
} finally {
  await client.close()
}
facts.versions = { '@ai-sdk/mcp': JSON.parse(readFileSync(join(folder, 'package.json'))).version }
console.log(JSON.stringify(facts))
process.exit(0)
