/** Commands of jobs, as pages show them. */

/**
 * Return a quoted command as people write it: a word with quotes within is in double quotes, if it has
 * nothing that means something there; otherwise a quote within quotes is one character.
 */
export const plainCommand = (command: string): string =>
  command
    .replaceAll(/'[^']*(?:'"'"'[^']*)+'(?= |$)/g, (word) => {
      const text = word.slice(1, -1).replaceAll(`'"'"'`, "'");
      return /["$`\\!]/.test(text) ? word : `"${text}"`;
    })
    .replaceAll(`'"'"'`, "'");
