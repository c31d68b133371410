/** Round numbers on an axis, and their texts. Pure. */

export type Range = [number, number];

/** More would take the place of the picture. Ticks that differ only beyond have one text. */
const MOST_DECIMALS = 8;

/** Return about `wanted` round numbers within [low, high]: steps of 1, 2 or 5 times 10^n. */
export function ticks(low: number, high: number, wanted: number): number[] {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999) ?? span;
  const out: number[] = [];
  const first = Math.ceil(low / step - 1e-9);
  // counted, since adding 1 to a very large number may not change it
  for (let n = 0; n <= 2 * wanted + 2 && (first + n) * step <= high + step * 1e-9; n += 1) {
    out.push((first + n) * step);
  }
  return out.length ? out : [low];
}

const digits = (value: number): number => Math.floor(Math.log10(Math.abs(value)) + 1e-9);

/** Return the texts of ticks in one form: the same decimals, and the same exponent if any. */
export function tickTexts(values: number[]): string[] {
  const [one = 0, two] = values;
  if (two === undefined) return values.map(valueText);
  const step = two - one;
  const largest = Math.max(...values.map(Math.abs));
  const [top, low] = [digits(largest), digits(step)];
  const isFar = largest >= 1e6 || largest < 1e-4;
  const exponent = isFar ? (top - low <= 2 ? low : top) : 0;
  const decimals = Math.min(MOST_DECIMALS, Math.max(0, exponent - low));
  const text = (value: number): string => {
    const number = (value / 10 ** exponent).toFixed(decimals);
    return `${number}${exponent ? `e${exponent}` : ""}`.replaceAll("-", "−");
  };
  const texts = values.map((v) => (Math.abs(v) <= Math.abs(step) * 1e-6 ? "0" : text(v)));
  return texts.map((said, n) => (said === texts[n - 1] ? "" : said));
}

/** Return a number as a person reads it: with four significant digits. */
export function valueText(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const isFar = size >= 1e6 || size < 1e-3;
  const text = isFar
    ? value.toExponential(3).replace("e+", "e")
    : String(Number(value.toPrecision(4)));
  return text.replace(/^-/, "−");
}

export interface Scale {
  (value: number): number;
  back: (pixel: number) => number;
}

/** Return the scale that maps a range to pixels. */
export function scale([low, high]: Range, from: number, to: number): Scale {
  const factor = high > low ? (to - from) / (high - low) : 0;
  const there = (value: number): number =>
    factor ? from + (value - low) * factor : (from + to) / 2;
  const back = (pixel: number): number => (factor ? low + (pixel - from) / factor : low);
  return Object.assign(there, { back });
}
