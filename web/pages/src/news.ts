/**
 * What a page knows of a job: the stream of the page and answers to its questions may cross.
 *
 * answered: returns what is known after an answer. isCrossed: the last news were heard while the
 * answer was under way, so they are younger.
 */
export class News<T> {
  latest: T | undefined;

  constructor(private readonly answered: (last: T | undefined, said: T, isCrossed: boolean) => T) {}

  /** Return what is known after this answer. */
  async after(asked: Promise<T>): Promise<T> {
    const before = this.latest;
    const said = await asked;
    this.latest = this.answered(this.latest, said, this.latest !== before);
    return this.latest;
  }
}
