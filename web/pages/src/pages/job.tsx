/** The page of one job. */

import type { JSX } from "preact";
import { Frame } from "../parts/frame.tsx";

export function JobPage(): JSX.Element {
  return <Frame title="Job">…</Frame>;
}
