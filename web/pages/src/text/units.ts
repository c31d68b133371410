/** Units as people write them, and labels with units. Pure. */

import { axisLabel } from "./plot_data.ts";

const NAMES: [RegExp, string][] = [
  [/\bdegC\b/g, "°C"],
  [/\bdegF\b/g, "°F"],
  [/\bdeg\b/g, "°"],
  [/\b(?:micro|u)m\b/g, "µm"],
  [/([A-Za-zµ])\^?2\b/g, "$1²"],
  [/([A-Za-zµ])\^?3\b/g, "$1³"],
];

/** Return a unit in the form of print: "cm2/s" becomes "cm²/s". */
export const unitText = (unit: string): string =>
  NAMES.reduce((text, [name, sign]) => text.replace(name, sign), unit);

export interface Label {
  name: string;
  unit: string;
}

/** Return the parts of a label that an app gives: "Time [s]". */
export function parseLabel(label: string | undefined): Label {
  const text = typeof label === "string" ? label.trim() : "";
  const found = /^(.*?)\s*\[([^\]]*)\]$/.exec(text);
  return found
    ? { name: found[1] ?? "", unit: unitText(found[2] ?? "") }
    : { name: text, unit: "" };
}

/** Return a label with its unit in the form of print: "Time (s)". */
export function labelText(label: string | undefined): string {
  const { name, unit } = parseLabel(label);
  return axisLabel(name, unit);
}
