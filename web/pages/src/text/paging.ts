/** Pages of lists: the place of the next one is a text, because numbers of a site with shards exceed 2^53. */

/** An answer with a page. next: of supervisors that have no `cursor`; only safe for one shard. */
export interface Paged {
  next: number | null;
  cursor?: string | null;
}

/** Return the request field for the page after this one; null at the end. */
export function following(page: Paged): string | null {
  if (page.cursor !== undefined) return page.cursor;
  return page.next === null ? null : String(page.next);
}

/** Return the fields of a request of the audit trail, newest first. cursor: "" for the first page. */
export function auditPlace(cursor: string): { before: number; cursor?: string } {
  return cursor === "" ? { before: 0 } : { before: 0, cursor };
}
