/** A problem of a definition that was sent, as the supervisor describes it. */

export interface Problem {
  /** "" or missing: of the whole. */
  path?: string;
  problem: string;
  right: string;
  /** Of a text. */
  line?: number | null;
}
