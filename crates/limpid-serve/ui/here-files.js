// Files that go into the page and out of it: models that are dropped or chosen, archives of a run, live pages.
import { make } from "./dom.js";

/** @typedef {[string, Uint8Array][]} NamedBytes paths with their bytes */
/** @typedef {{path: string, file: File}} PickedFile */

/** A page holds a model, a copy for its worker, and what it computes; a module addresses 4 GiB. */
const LARGEST_MODEL = 1 << 30;

/** The files of an entry, and of a folder those that lie in it. @param {any} entry @returns {Promise<PickedFile[]>} */
async function ofEntry(entry, isInside = false) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [{ path: entry.fullPath.slice(1), file }];
  }
  if (isInside) return [];
  const reader = entry.createReader();
  const all = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) break;
    all.push(...some);
  }
  return (await Promise.all(all.map((one) => ofEntry(one, true)))).flat();
}

/** What was dropped. @param {DataTransfer} dropped */
export async function droppedFiles(dropped) {
  // to be asked for at once: what was dropped is gone afterwards
  const all = [...dropped.items].map((item) => {
    const [entry, file] = [item.webkitGetAsEntry(), item.getAsFile()];
    return entry ? ofEntry(entry) : file ? [{ path: file.name, file }] : [];
  });
  return (await Promise.all(all)).flat();
}

/** What was chosen: files, or a folder with what lies in it. @param {FileList | null} list @returns {PickedFile[]} */
export function chosenFiles(list) {
  const all = [...(list ?? [])].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
  return all.filter(({ path }) => path.split("/").length < 3);
}

/**
 * A model of files: one file, or a folder.
 * @param {PickedFile[]} picked
 * @returns {Promise<{name: string, files: NamedBytes}>}
 */
export async function modelOf(picked) {
  const size = picked.reduce((sum, { file }) => sum + file.size, 0);
  if (size > LARGEST_MODEL) {
    throw new Error(`These files have ${Math.ceil(size / 1e6)} MB, and a page opens models of at most 1,074 MB.`);
  }
  const [first] = picked;
  if (!first) throw new Error("There is no file in it.");
  const isOne = picked.length === 1 && !first.path.includes("/");
  const folder = first.path.includes("/") ? first.path.split("/")[0] ?? "" : "model";
  const read = async (/** @type {PickedFile} */ { path, file }) => {
    const bytes = new Uint8Array(await file.arrayBuffer());
    return /** @type {[string, Uint8Array]} */ ([isOne ? path : `${folder}/${path.split("/").at(-1)}`, bytes]);
  };
  return { name: isOne ? first.path : folder, files: await Promise.all(picked.map(read)) };
}

/** The remainders of CRC-32, by the last byte. */
const REMAINDERS = Uint32Array.from({ length: 256 }, (_, byte) => {
  let rest = byte;
  for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? (rest >>> 1) ^ 0xedb88320 : rest >>> 1;
  return rest;
});

/** @param {Uint8Array} bytes */
function crc32(bytes) {
  let rest = 0xffffffff;
  for (const byte of bytes) rest = (rest >>> 8) ^ (REMAINDERS[(rest ^ byte) & 255] ?? 0);
  return ~rest >>> 0;
}

/** Little-endian numbers: pairs of a number and how many bytes it takes. @param {[number, number][]} fields */
function record(fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [, size]) => sum + size, 0)));
  let at = 0;
  for (const [value, size] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return new Uint8Array(view.buffer);
}

/** Files in a ZIP archive, as they are: weights hardly get smaller. @param {NamedBytes} files */
export function zipOf(files) {
  /** @type {Uint8Array[]} */
  const parts = [];
  /** @type {Uint8Array[]} */
  const index = [];
  let at = 0;
  const now = new Date();
  const time = (now.getHours() << 11) | (now.getMinutes() << 5) | (now.getSeconds() >> 1);
  const day = (Math.max(0, now.getFullYear() - 1980) << 9) | ((now.getMonth() + 1) << 5) | now.getDate();
  for (const [path, bytes] of files) {
    const name = new TextEncoder().encode(path);
    // version, names in UTF-8, stored, its time, checksum, sizes, the name's length, nothing more
    const about = /** @type {[number, number][]} */ ([
      [20, 2], [0x800, 2], [0, 2], [time, 2], [day, 2], [crc32(bytes), 4], [bytes.length, 4], [bytes.length, 4],
      [name.length, 2], [0, 2],
    ]);
    const head = record([[0x04034b50, 4], ...about]);
    index.push(record([[0x02014b50, 4], [20, 2], ...about, [0, 2], [0, 2], [0, 2], [0, 4], [at, 4]]), name);
    parts.push(head, name, bytes);
    at += head.length + name.length + bytes.length;
  }
  const size = index.reduce((sum, part) => sum + part.length, 0);
  const end = record([
    [0x06054b50, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [at, 4], [0, 2],
  ]);
  return new Blob(/** @type {any} */ ([...parts, ...index, end]), { type: "application/zip" });
}

/** Bytes in base64. @param {Uint8Array} bytes */
function inBase64(bytes) {
  const each = 3 << 12;
  let text = "";
  for (let at = 0; at < bytes.length; at += each) {
    text += btoa(String.fromCharCode(...bytes.subarray(at, at + each)));
  }
  return text;
}

/**
 * A page that holds these values, each deflated, as `Archive` reads them.
 * @param {string} html of the page, with an empty place for them
 * @param {NamedBytes} values
 */
export async function pageWith(html, values) {
  /** @type {Record<string, [number, number]>} */
  const index = {};
  const parts = [];
  let at = 0;
  for (const [key, bytes] of values) {
    const packed = new Blob([/** @type {any} */ (bytes)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
    const part = new Uint8Array(await new Response(packed).arrayBuffer());
    index[key] = [at, part.length];
    parts.push(part);
    at += part.length;
  }
  const names = new TextEncoder().encode(JSON.stringify(index));
  const whole = new Blob(/** @type {any} */ ([record([[names.length, 4]]), names, ...parts]));
  const text = inBase64(new Uint8Array(await whole.arrayBuffer()));
  const place = html.indexOf(VALUES) + VALUES.length;
  return new Blob([html.slice(0, place), text, html.slice(place)], { type: "text/html" });
}

/** What index.html has before the values. */
const VALUES = "id=\"saved\">";

/** Gives a file to whoever reads the page. @param {string} name @param {Blob} blob */
export function giveFile(name, blob) {
  const href = URL.createObjectURL(blob);
  make("a", { href, download: name }).click();
  // a browser reads it later
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
