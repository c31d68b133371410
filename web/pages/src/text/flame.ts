/** Flame graphs of collapsed stacks (`a;b;c 12`): the boxes to draw. Pure. */

import type { PlotData } from "./plot_data.ts";

export interface Frame {
  name: string;
  total: number;
  /** Samples in the function itself. */
  self: number;
  callees: Map<string, Frame>;
}

const DEEPEST = 200;
const MOST_FRAMES = 200_000;

const frame = (name: string): Frame => ({ name, total: 0, self: 0, callees: new Map() });

/** Return the merged stacks. Lines of another form are left out. */
export function flameTree(text: string): Frame {
  const root = frame("all");
  let count = 0;
  for (const line of text.split("\n")) {
    const found = /^(.+) (\d{1,15})\s*$/.exec(line);
    if (!found) continue;
    const samples = Number(found[2]);
    let at = root;
    at.total += samples;
    for (const name of (found[1] ?? "").split(";").slice(0, DEEPEST)) {
      let next = at.callees.get(name);
      if (!next) {
        if (count >= MOST_FRAMES) break;
        count += 1;
        next = frame(name);
        at.callees.set(name, next);
      }
      next.total += samples;
      at = next;
    }
    at.self += samples;
  }
  return root;
}

export interface Box {
  frame: Frame;
  /** Names from the root on; the place of the box. */
  path: string[];
  depth: number;
  /** Shares of the width. */
  left: number;
  width: number;
}

const NARROWEST = 0.004;
const MOST_BOXES = 3000;

/** Return the frame at a path, or the root if it is not there. */
export function frameAt(root: Frame, path: string[]): Frame {
  let at = root;
  for (const name of path) {
    const next = at.callees.get(name);
    if (!next) return root;
    at = next;
  }
  return at;
}

/** Return the boxes of a frame and of all below it, the widest first at each depth. */
export function boxes(root: Frame, path: string[]): Box[] {
  const shown = frameAt(root, path);
  const out: Box[] = [];
  const queue: Box[] = [{ frame: shown, path, depth: 0, left: 0, width: 1 }];
  for (let box = queue.shift(); box && out.length < MOST_BOXES; box = queue.shift()) {
    out.push(box);
    let { left } = box;
    for (const callee of [...box.frame.callees.values()].sort((a, b) => b.total - a.total)) {
      const width = shown.total ? callee.total / shown.total : 0;
      if (width >= NARROWEST)
        queue.push({
          frame: callee,
          path: [...box.path, callee.name],
          depth: box.depth + 1,
          left,
          width,
        });
      left += width;
    }
  }
  return out;
}

export interface Hot {
  name: string;
  self: number;
  total: number;
}

/** Return the functions with the most samples of their own. A recursion counts once. */
export function hottest(root: Frame, most: number): Hot[] {
  const found = new Map<string, Hot>();
  const visit = (at: Frame, above: Set<string>): void => {
    for (const callee of at.callees.values()) {
      const hot = found.get(callee.name) ?? { name: callee.name, self: 0, total: 0 };
      found.set(callee.name, hot);
      hot.self += callee.self;
      if (!above.has(callee.name)) hot.total += callee.total;
      const first = !above.has(callee.name);
      above.add(callee.name);
      visit(callee, above);
      if (first) above.delete(callee.name);
    }
  };
  visit(root, new Set());
  return [...found.values()].sort((a, b) => b.self - a.self || b.total - a.total).slice(0, most);
}

const TASK = /^\d+-(\d+)-([A-Za-z0-9_]+)-(\d+)$/;
const FILE =
  /^((?:cpu|mem|gpu)-(?:sampler|cprofile|py-spy|samples|process|memray))(?:-(\d+)-\d+-([A-Za-z0-9._-]+?))?\.(collapsed|prof|dat|bin)(?:\.\d+)?$/;

export interface Profile {
  /** In the run directory. */
  name: string;
  task: string;
  attempt: number;
  tool: string;
  program: string;
  pid: string;
  ending: string;
  size: number;
}

/** Return the profile that a file of a run directory is, or null. */
export function profileOf(file: { name: string; size: number }): Profile | null {
  const [folder, task, name] = ["", "", ...file.name.split("/")].slice(-3);
  const where = TASK.exec(task ?? "");
  const what = FILE.exec(name ?? "");
  if (folder !== "jobscribe-profiles" || !where || !what || file.size === 0) return null;
  return {
    name: file.name,
    task: `${where[2]}/${where[3]}`,
    attempt: Number(where[1]),
    tool: (what[1] ?? "").replace("-", " "),
    pid: what[2] ?? "",
    program: what[3] ?? "",
    ending: what[4] ?? "",
    size: file.size,
  };
}

/** Return the plots of a recorded curve: lines `MEM MIB TIME` or `GPU PERCENT MIB TIME`. */
export function curves(text: string): PlotData[] {
  const memory: [number, number][] = [];
  const gpu: [number, number, number][] = [];
  for (const line of text.split("\n")) {
    const [word, ...rest] = line.trim().split(/\s+/);
    const [a = Number.NaN, b = Number.NaN, c = Number.NaN] = rest.map(Number);
    if (word === "MEM" && Number.isFinite(a + b)) memory.push([b, a * 2 ** 20]);
    if (word === "GPU" && Number.isFinite(a + b + c)) gpu.push([c, a, b * 2 ** 20]);
  }
  memory.sort((a, b) => a[0] - b[0]);
  gpu.sort((a, b) => a[0] - b[0]);
  const made = (title: string, unit: string, points: [number, number][]): PlotData[] =>
    points.length === 0
      ? []
      : [
          {
            title,
            x: {
              name: "Time",
              unit: "s",
              time: true,
              start: points[0]?.[0] ?? 0,
              values: points.map((p) => p[0]),
            },
            y: { name: title, unit },
            series: [{ name: title, values: points.map((p) => p[1]) }],
          },
        ];
  return [
    ...made("Memory", "B", memory),
    ...made(
      "GPU",
      "%",
      gpu.map((p) => [p[0], p[1]]),
    ),
    ...made(
      "GPU memory",
      "B",
      gpu.map((p) => [p[0], p[2]]),
    ),
  ];
}
