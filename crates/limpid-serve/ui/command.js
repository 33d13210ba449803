// The command that shows in a terminal what the page shows. It can be pasted as it is.

/** A word as a shell takes it. @param {string} text */
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/**
 * @param {any} model what `GET model` says
 * @param {{prompt: string | null, ids: number[], last: boolean}} text what is run: `ids` where there is no prompt;
 *   `last`: of a long text the end
 * @param {string} steps what changes the run, as JSON; empty: nothing
 * @param {string[]} flags
 */
export function inspectCommand(model, { prompt, ids, last }, steps, ...flags) {
  const [place = "MODEL", ...adapter] = model.place ?? [];
  // a prompt of these is a file, or standard input
  const fed = prompt !== null && /^(@|-$)/.test(prompt);
  const given = prompt?.startsWith("-") ? [`--prompt=${prompt}`] : ["--prompt", prompt ?? ""];
  const text = prompt === null ? ["--tokens", `${ids}`] : fed ? ["--prompt", "-"] : given;
  const words = [
    "inspect", "--model", place, ...adapter, ...text, ...(last ? ["--last"] : []),
    ...(steps === "" ? [] : ["--intervene", steps]), ...flags,
  ];
  return `${fed ? `printf '%s\\n' ${quoted(prompt)} | ` : ""}limpid ${words.map(quoted).join(" ")}`;
}
