/** What is known of a job when an answer and news of the stream arrive in any order. Pure. */

import type { Status } from "../jobs.ts";
import { isActive } from "../jobs.ts";

/** Return what is known after an answer. news: the newest status of the stream since the request. */
export function newest(news: Status | undefined, answer: Status): Status {
  if (!news) return answer;
  if ((answer.position ?? 0) < (news.position ?? 0)) return news;
  const isSameRun = answer.computeJobSerial === news.computeJobSerial && isActive(answer.state);
  return isSameRun && news.parallelStatus
    ? { ...answer, parallelStatus: news.parallelStatus }
    : answer;
}
