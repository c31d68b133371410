// Builds the pages: src/ to ../static/app, with a manifest of the names of the files, and the digest of all sources, by which a
// test finds a build that is out of date (tests/unit/web/test_page_build.py).

import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? path.join(here, "..", "static", "app");
const ROOTS = ["build.mjs", "package-lock.json", "package.json", "src", "tsconfig.json"];

async function sources(name) {
  const entries = await readdir(path.join(here, name), { withFileTypes: true }).catch(() => null);
  if (entries === null) return [name];
  const found = await Promise.all(entries.map((e) => sources(`${name}/${e.name}`)));
  return found.flat();
}

/** The SHA-256 of "<name>\n<length>\n<content>" of each file, in the order of the names' code points. */
async function digest() {
  const names = (await Promise.all(ROOTS.map(sources))).flat().sort();
  const hash = createHash("sha256");
  for (const name of names) {
    const content = await readFile(path.join(here, name));
    hash.update(`${name}\n${content.length}\n`).update(content);
  }
  return hash.digest("hex");
}

/** Texts of xterm that the policy of the pages forbids, their number, and what is in their place. */
const INLINE_STYLES = [
  [/createElement\("style"\)/g, 3, 'createElement("terminal-style")'],
  [/(\w+)\.setAttribute\("style",(`[^`]*`)\)/g, 1, "$1.style.cssText=$2"],
];

const withoutInlineStyles = {
  name: "without inline styles",
  setup: (plugin) =>
    plugin.onLoad({ filter: /@xterm\/xterm\/lib\/xterm\.mjs$/ }, async ({ path: file }) => {
      let contents = await readFile(file, "utf8");
      for (const [pattern, count, replacement] of INLINE_STYLES) {
        const found = contents.match(pattern)?.length ?? 0;
        if (found !== count) throw new Error(`${file}: ${pattern} occurs ${found} times`);
        contents = contents.replace(pattern, replacement);
      }
      return { contents, loader: "js" };
    }),
};

const icon = await readFile(path.join(here, "src", "icon.svg"));
const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8)}.svg`;
const result = await build({
  absWorkingDir: here,
  entryPoints: { main: "src/main.tsx" },
  outdir: out,
  write: false,
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022", "chrome110", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  legalComments: "none",
  charset: "utf8",
  metafile: true,
  plugins: [withoutInlineStyles],
  entryNames: "[name]-[hash]",
  chunkNames: "part-[hash]",
  assetNames: "[name]-[hash]",
});
const entry = Object.entries(result.metafile.outputs).find(
  ([, o]) => o.entryPoint === "src/main.tsx",
);
const base = (name) => path.basename(name);
const preload = entry[1].imports
  .filter((i) => i.kind === "import-statement")
  .map((i) => base(i.path));
const manifest = {
  script: base(entry[0]),
  style: base(entry[1].cssBundle),
  icon: iconName,
  preload: preload.sort(),
};

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
for (const file of result.outputFiles) {
  const name = base(file.path);
  // the style of the entry has those of all pages
  if (name.endsWith(".css") && name !== manifest.style) continue;
  await writeFile(path.join(out, name), file.contents);
}
await writeFile(path.join(out, iconName), icon);
await writeFile(path.join(out, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
await writeFile(path.join(out, "sources.sha256"), `${await digest()}\n`);
