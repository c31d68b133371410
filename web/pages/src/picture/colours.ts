/** Colour maps for values: 256 colours from dark to light, in even steps for the eye. Pure. */

const STOPS: Record<string, string[]> = {
  viridis: "440154 482475 414487 355f8d 2a788e 21918c 22a884 44bf70 7ad151 bddf26 fde725".split(
    " ",
  ),
  inferno: "000004 160b39 420a68 6a176e 932667 bc3754 dd513a f37819 fca50a f6d746 fcffa4".split(
    " ",
  ),
  grey: ["101010", "f4f4f4"],
};

export const MAPS = Object.keys(STOPS);
const SIZE = 256;
const tables = new Map<string, Uint8Array>();

/** Return the colours of a map: 256 times red, green, blue. */
export function colourTable(name: string): Uint8Array {
  const found = tables.get(name) ?? interpolated(STOPS[name] ?? STOPS.viridis ?? []);
  tables.set(name, found);
  return found;
}

function interpolated(stops: string[]): Uint8Array {
  const rgb = stops.map((hex) => [0, 2, 4].map((at) => Number.parseInt(hex.slice(at, at + 2), 16)));
  const out = new Uint8Array(SIZE * 3);
  for (let i = 0; i < SIZE; i += 1) {
    const place = (i / (SIZE - 1)) * (rgb.length - 1);
    const low = Math.min(Math.floor(place), rgb.length - 2);
    for (let c = 0; c < 3; c += 1) {
      const [from, to] = [rgb[low]?.[c] ?? 0, rgb[low + 1]?.[c] ?? 0];
      out[i * 3 + c] = Math.round(from + (to - from) * (place - low));
    }
  }
  return out;
}

/** Return which of the 256 colours a value within [low, high] has; others have the nearest. */
export function shadeOf(value: number, low: number, high: number): number {
  if (!(high > low)) return 0;
  return Math.max(0, Math.min(SIZE - 1, Math.round(((value - low) / (high - low)) * (SIZE - 1))));
}

export const cssColour = (colours: Uint8Array, at: number): string =>
  `rgb(${colours[at * 3]},${colours[at * 3 + 1]},${colours[at * 3 + 2]})`;
