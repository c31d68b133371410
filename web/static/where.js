// Where a run is to be computed: on this machine, or on a cluster, with what is asked of it. Shows what the cluster's partitions allow,
// and says what is over it before anything is sent; who decides is the supervisor.

import { byId, element, setText } from "./dom.js";

/** Name of the field in a simulation, and how it is shown. of: the partition's bound. */
const NUMBERS = [
  { name: "sbatchHours", title: "Time limit", unit: "hours", of: (p) => (p.timeLimitSecs ? p.timeLimitSecs / 3600 : null), whole: false },
  { name: "sbatchNodes", title: "Nodes", of: (p) => p.maxNodes ?? p.nodes, whole: true },
  { name: "tasksPerNode", title: "Tasks on each node", of: () => null, whole: true },
  { name: "sbatchCores", title: "Cores of each task", of: (p) => p.coresPerNode, whole: true },
];
const TEXTS = [{ name: "sbatchProject", title: "Account", known: (cluster) => cluster.accounts ?? [] }];
const SHOWN = 6;

/** Fills #where and #batch. Returns {offer(clusters), values(), set(values), mark(name, sentence)}. values() is null where one will not do. */
export function whereForm() {
  let clusters = [];
  const rows = new Map();
  const chosen = () => clusters.find((c) => c.cluster === byId("where").value);
  const partition = () => chosen()?.partitions?.find((p) => p.name === byId("queue").value);

  /** What is typed already stays. */
  function offer(found) {
    const before = raw();
    clusters = found;
    const options = clusters.map((c) => element("option", { value: c.cluster }, `cluster ${c.cluster}`));
    byId("where").replaceChildren(element("option", { value: "" }, "this machine"), ...options);
    byId("where-row").hidden = clusters.length === 0;
    set(before);
  }

  function draw(given = {}) {
    const cluster = chosen();
    byId("batch").hidden = !cluster;
    rows.clear();
    if (!cluster) return byId("batch").replaceChildren();
    const made = [partitionRow(cluster, given), ...TEXTS.map((t) => textRow(t, cluster, given)), ...NUMBERS.map((n) => numberRow(n, given))];
    const hint = element("p", { className: "hint", id: "batch-hint" });
    byId("batch").replaceChildren(...made, hint);
    byId("queue").addEventListener("change", bounds);
    bounds();
  }

  function partitionRow(cluster, given) {
    if (!cluster.partitions) {
      // nobody has told of them yet: they are known when somebody has signed in
      const input = element("input", { id: "queue", type: "text", spellcheck: false, value: given.sbatchQueue ?? "", placeholder: "as usual" });
      return kept("sbatchQueue", "Partition", input);
    }
    const usable = (cluster.partitions ?? []).filter((p) => p.up !== false);
    const select = element("select", { id: "queue" }, element("option", { value: "" }, "the cluster's own choice"));
    select.append(...usable.map((p) => element("option", { value: p.name }, p.default ? `${p.name} (default)` : p.name)));
    const wanted = given.sbatchQueue ?? cluster.defaults?.partition ?? usable.find((p) => p.default)?.name ?? "";
    select.value = [...select.options].some((o) => o.value === wanted) ? wanted : "";
    return kept("sbatchQueue", "Partition", select);
  }

  function textRow(text, cluster, given) {
    const known = text.known(cluster);
    const id = `batch-${text.name}`;
    const input = element("input", { id, type: "text", spellcheck: false, value: given[text.name] ?? "", placeholder: "as usual" });
    if (known.length) {
      const list = element("datalist", { id: `${id}-known` }, ...known.map((k) => element("option", { value: k })));
      input.setAttribute("list", list.id);
      return kept(text.name, text.title, input, list);
    }
    return kept(text.name, text.title, input);
  }

  function numberRow(number, given) {
    const options = { type: "number", min: number.whole ? "1" : "0.01", step: number.whole ? "1" : "any", placeholder: "as usual" };
    const value = given[number.name] ?? "";
    const input = element("input", { id: `batch-${number.name}`, inputMode: "decimal", ...options, value: String(value) });
    return kept(number.name, number.title, input, number.unit ? element("small", {}, number.unit) : null);
  }

  function kept(name, title, input, beside = null) {
    const wrong = element("p", { className: "wrong", id: `${input.id}-wrong`, hidden: true });
    const label = element("label", { htmlFor: input.id }, title);
    const value = element("div", { className: "value" }, input);
    if (beside?.tagName === "SMALL") label.append(beside);
    else if (beside) value.append(beside);
    rows.set(name, { input, wrong });
    return element("div", { className: "row" }, label, value, wrong);
  }

  /** What the partition allows. */
  function bounds() {
    const [cluster, p] = [chosen(), partition()];
    for (const number of NUMBERS) {
      const most = least(p ? number.of(p) : null, limit(cluster, number.name));
      const { input } = rows.get(number.name);
      if (most) input.max = String(most);
      else input.removeAttribute("max");
    }
    setText(byId("batch-hint"), `${p ? allowed(p) : ""}${cluster.state === "unreachable" ? " Its scheduler cannot be asked at the moment." : ""}`);
  }

  /** As it stands there, right or wrong. */
  function raw() {
    if (!chosen()) return {};
    const said = [...rows].map(([name, { input }]) => [name, input.type === "number" && input.value ? Number(input.value) : input.value.trim()]);
    return { jobRunMode: "sbatch", sbatchCluster: chosen().cluster, ...Object.fromEntries(said.filter(([, value]) => value !== "")) };
  }

  function values() {
    for (const name of rows.keys()) mark(name, "", false);
    const wrong = chosen() && NUMBERS.find(({ name }) => !rows.get(name).input.checkValidity());
    if (wrong) {
      mark(wrong.name, tooMuch(wrong, rows.get(wrong.name).input));
      return null;
    }
    return raw();
  }

  function tooMuch({ whole }, input) {
    const kind = whole ? "a whole number of at least 1" : "a number over 0";
    return input.max && Number(input.value) > Number(input.max)
      ? `This may be at most ${rounded(Number(input.max))} here.` : `This must be ${kind}, or empty.`;
  }

  function mark(name, sentence, focus = true) {
    const row = rows.get(name);
    if (!row) return false;
    setText(row.wrong, sentence);
    row.wrong.hidden = !sentence;
    row.input.toggleAttribute("aria-invalid", Boolean(sentence));
    if (sentence) {
      row.input.setAttribute("aria-invalid", "true");
      row.input.setAttribute("aria-describedby", row.wrong.id);
    }
    if (sentence && focus) row.input.focus();
    return true;
  }

  function set(given) {
    const there = given.jobRunMode === "sbatch" && clusters.some((c) => c.cluster === given.sbatchCluster);
    byId("where").value = there ? given.sbatchCluster : "";
    draw(there ? given : {});
  }

  byId("where").addEventListener("change", () => draw());
  return { offer, values, set, mark };
}

const LIMITS = { sbatchHours: (l) => l.timeLimitSecs && l.timeLimitSecs / 3600, sbatchNodes: (l) => l.nodes, sbatchCores: (l) => l.cores };

const limit = (cluster, name) => LIMITS[name]?.(cluster.limits ?? {}) ?? null;

function least(...bounds) {
  const known = bounds.filter((b) => b !== null && b !== undefined);
  return known.length ? Math.min(...known) : null;
}

const rounded = (number) => String(Math.round(number * 100) / 100);

/** One line about a partition. */
function allowed(p) {
  const said = [];
  if (p.timeLimitSecs) said.push(`up to ${rounded(p.timeLimitSecs / 3600)} h`);
  if (p.maxNodes ?? p.nodes) said.push(`${p.maxNodes ?? p.nodes} nodes`);
  if (p.coresPerNode) said.push(`${p.coresPerNode} cores each`);
  if (p.memoryMbPerNode) said.push(`${Math.floor(p.memoryMbPerNode / 1024)} GB each`);
  if (p.gpusPerNode) said.push(`${p.gpusPerNode} GPUs each`);
  return said.length ? `${said.slice(0, SHOWN).join(", ")}.` : "";
}
