/** Numbers and times for people. Pure. */

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

/** Format a duration in seconds with two units at most: "3 h 20 min". */
export function duration(secs: number): string {
  if (!Number.isFinite(secs) || secs < 0) return "–";
  if (secs < 10) return `${secs.toFixed(1)} s`;
  const whole = Math.round(secs);
  const first = UNITS.findIndex(([size]) => whole >= size);
  const [size, unit] = UNITS[first] ?? [1, "s"];
  const count = Math.floor(whole / size);
  const next = UNITS[first + 1];
  const rest = next ? Math.floor((whole - count * size) / next[0]) : 0;
  return next && rest ? `${count} ${unit} ${rest} ${next[1]}` : `${count} ${unit}`;
}

/** Format a moment (unix seconds) relative to now: "5 min ago". */
export function ago(at: number, now: number): string {
  const secs = now - at;
  if (secs < 5) return "just now";
  const [size, unit] = UNITS.find(([s]) => secs >= s) ?? [1, "s"];
  return `${Math.floor(secs / size)} ${unit} ago`;
}

/** Format a moment (unix seconds) in local time. */
export function moment(at: number, withSeconds = true): string {
  return new Date(at * 1000).toLocaleString(undefined, {
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    ...(withSeconds ? { second: "2-digit" } : {}),
  });
}

/** Format the day of a moment (unix seconds) in local time. */
export const day = (at: number): string =>
  new Date(at * 1000).toLocaleDateString(undefined, {
    year: "numeric",
    month: "short",
    day: "numeric",
  });

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Format a number of bytes: "1.5 MiB". */
export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${SIZES[unit]}`;
}

/** Return a sentence with a capital letter and a full stop. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  if (trimmed === "") return "";
  const end = /[.!?:]$/.test(trimmed) ? "" : ".";
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + end;
}

export const plural = (count: number, one: string): string =>
  `${count.toLocaleString()} ${one}${count === 1 ? "" : "s"}`;

/** Return a text of the supervisor with its UTC times in local time. */
export const localTimes = (text: string): string =>
  text.replaceAll(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC/g, (_, day, time) =>
    moment(Date.parse(`${day}T${time}Z`) / 1000),
  );
