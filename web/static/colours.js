// Colour maps for values, and the page's own colours for lines and text. A map is 256 colours, dark to light in even steps for the eye.

const STOPS = {
  viridis: ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"],
  inferno: ["000004", "160b39", "420a68", "6a176e", "932667", "bc3754", "dd513a", "f37819", "fca50a", "f6d746", "fcffa4"],
  grey: ["101010", "f4f4f4"],
};

export const MAPS = Object.keys(STOPS);
const SIZE = 256;
const tables = new Map();

/** Uint8Array of 256 times red, green, blue. */
export function table(name) {
  if (!tables.has(name)) tables.set(name, interpolated(STOPS[name] ?? STOPS.viridis));
  return tables.get(name);
}

function interpolated(stops) {
  const rgb = stops.map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const out = new Uint8Array(SIZE * 3);
  for (let i = 0; i < SIZE; i += 1) {
    const place = (i / (SIZE - 1)) * (rgb.length - 1);
    const low = Math.min(Math.floor(place), rgb.length - 2);
    for (let c = 0; c < 3; c += 1) out[i * 3 + c] = Math.round(rgb[low][c] + (rgb[low + 1][c] - rgb[low][c]) * (place - low));
  }
  return out;
}

/** Which of the 256 colours a value has within [low, high]; what lies outside has the nearest. */
export function index(value, low, high) {
  if (!(high > low)) return 0;
  return Math.max(0, Math.min(SIZE - 1, Math.round(((value - low) / (high - low)) * (SIZE - 1))));
}

export const css = (colours, at) => `rgb(${colours[at * 3]},${colours[at * 3 + 1]},${colours[at * 3 + 2]})`;

/** The colours of the page as it is shown now, light or dark. */
export function pageColours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(name).trim();
  return {
    ink: named("--ink"), soft: named("--soft"), grid: named("--grid"), line: named("--line"), card: named("--card"),
    plots: [0, 1, 2, 3, 4, 5].map((n) => named(`--plot-${n}`)),
  };
}
