// Bundles the tests with esbuild, because node runs no TypeScript, and runs them.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = mkdtempSync(path.join(here, "..", "node_modules", ".tests-"));
try {
  const tests = readdirSync(here).filter((name) => name.endsWith(".test.ts"));
  await build({
    entryPoints: tests.map((name) => path.join(here, name)),
    outdir: out,
    bundle: true,
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".mjs" },
    logLevel: "warning",
  });
  const files = tests.map((name) => path.join(out, name.replace(/\.ts$/, ".mjs")));
  const { status } = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" });
  process.exitCode = status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
