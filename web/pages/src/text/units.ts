/** Units as people write them. Pure. */

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

/** Return a label with its unit, which is in brackets, in the form of print. */
export const withUnits = (label: string): string =>
  String(label).replace(/\[([^\]]*)\]/g, (_, unit: string) => `[${unitText(unit)}]`);
