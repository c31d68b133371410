/** Uploads of files into a run directory, in parts, so that proxies with small limits pass them. */

import { ApiError, data, refusal } from "./api.ts";
import { path } from "./site.ts";

const PART = 4 * 2 ** 20;
/** The digest needs the whole file in memory. */
export const MOST_BYTES = 512 * 2 ** 20;

/** Return the SHA-256 of a file as hexadecimal digits. Raises ApiError. */
async function digest(file: File): Promise<string> {
  if (!crypto.subtle) {
    const advice = "use HTTPS, or jobscribe job put on a command line";
    throw new ApiError("insecure", "uploads need an encrypted connection", advice, 0, false);
  }
  if (file.size > MOST_BYTES) {
    const said = "the file is too large for an upload by browser";
    throw new ApiError("tooLarge", said, "use jobscribe job put on a command line", 0, false);
  }
  const hash = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
  return Array.from(new Uint8Array(hash), (b) => b.toString(16).padStart(2, "0")).join("");
}

/**
 * Store a file, and continue where an interrupted upload of it ended. onProgress: called with shares of the whole. replace: also over another file of this
 * name. Raises ApiError.
 */
export async function upload(
  jid: string,
  file: File,
  replace: boolean,
  onProgress: (share: number) => void,
): Promise<void> {
  const { name, size } = file;
  const sha256 = await digest(file);
  const query = new URLSearchParams({ name, sha256, size: String(size), replace: `${replace}` });
  const begun = { computeJid: jid, name, sha256, size };
  let offset = (await data<{ received: number }>("run-file-part", begun)).received;
  do {
    query.set("offset", String(offset));
    const part = file.slice(offset, offset + PART);
    let response: Response;
    try {
      response = await fetch(path(`/page-data/job-file/${jid}?${query}`), {
        method: "PUT",
        headers: { "X-Jobscribe": "1" },
        body: part,
      });
    } catch {
      throw new ApiError("unreachable", "the site does not answer", "upload it again", 0, true);
    }
    if (!response.ok) throw await refusal(response);
    offset += part.size;
    onProgress(size ? offset / size : 1);
  } while (offset < size);
}
