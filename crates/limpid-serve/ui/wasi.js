// What a module built for WASI asks of its system: files, which are in this memory alone, the clock, random numbers.
// WASI 0.1 (github.com/WebAssembly/WASI) names the functions, their numbers and the layouts of their records.

/** @typedef {{bytes: Uint8Array, size: number, id: number}} MemoryFile `size` of the bytes are its content */
/** @typedef {{names: Map<string, MemoryFile | MemoryFolder>, id: number}} MemoryFolder */
/** @typedef {{node: MemoryFile | MemoryFolder, at: number, appends: boolean}} OpenFile */

const DONE = 0;
const BAD_FILE = 8;
const EXISTS = 20;
const INVALID = 28;
const IS_FOLDER = 31;
const MISSING = 44;
const NO_FOLDER = 54;
const NOT_EMPTY = 55;
const FOLDER_TYPE = 3;
const FILE_TYPE = 4;
/** The one folder that the module is given; what comes before are its standard streams. */
const ROOT = 3;

/** Files by their paths from the root. */
export class MemoryFiles {
  count = 1;
  /** @type {MemoryFolder} */
  root = { names: new Map(), id: 0 };

  /** The folder that a path is in, and its name there. @param {string} path */
  place(path) {
    const parts = path.split("/").filter((part) => part !== "" && part !== ".");
    const name = parts.pop() ?? "";
    let folder = this.root;
    for (const part of parts) {
      const next = folder.names.get(part);
      if (!next || !("names" in next)) return null;
      folder = next;
    }
    return { folder, name };
  }

  /** @param {string} path */
  find(path) {
    const place = this.place(path);
    return place && (place.name === "" ? place.folder : place.folder.names.get(place.name) ?? null);
  }

  /** @param {string} path */
  makeFolder(path) {
    const place = this.place(path);
    if (!place) return MISSING;
    if (place.folder.names.has(place.name)) return EXISTS;
    place.folder.names.set(place.name, { names: new Map(), id: this.count++ });
    return DONE;
  }

  /** @param {string} path @param {Uint8Array} bytes */
  write(path, bytes) {
    const folders = path.split("/").slice(0, -1);
    folders.forEach((_, n) => this.makeFolder(folders.slice(0, n + 1).join("/")));
    const place = this.place(path);
    place?.folder.names.set(place.name, { bytes, size: bytes.length, id: this.count++ });
  }

  /** Every file, by its path. @returns {{path: string, file: MemoryFile}[]} */
  all(folder = this.root, above = "") {
    return [...folder.names].flatMap(([name, node]) =>
      "names" in node ? this.all(node, `${above}${name}/`) : [{ path: above + name, file: node }]);
  }

  /** Takes a file or an empty folder away. @param {string} path @param {boolean} isFolder */
  remove(path, isFolder) {
    const [place, node] = [this.place(path), this.find(path)];
    if (!place || !node) return MISSING;
    if (isFolder !== "names" in node) return isFolder ? NO_FOLDER : IS_FOLDER;
    if ("names" in node && node.names.size > 0) return NOT_EMPTY;
    place.folder.names.delete(place.name);
    return DONE;
  }

  /** @param {string} from @param {string} to */
  rename(from, to) {
    const [was, is, node] = [this.place(from), this.place(to), this.find(from)];
    if (!was || !is || !node) return MISSING;
    was.folder.names.delete(was.name);
    is.folder.names.set(is.name, node);
    return DONE;
  }
}

/** Makes room for so many bytes. @param {MemoryFile} file @param {number} size */
function resize(file, size) {
  if (size > file.bytes.length) {
    const grown = new Uint8Array(Math.max(size, 2 * file.bytes.length));
    grown.set(file.bytes.subarray(0, file.size));
    file.bytes = grown;
  }
  if (size < file.size) file.bytes.fill(0, size, file.size);
  file.size = size;
}

/** The functions of `wasi_snapshot_preview1`. */
class WasiSystem {
  /**
   * @param {MemoryFiles} files
   * @param {() => WebAssembly.Memory} memory of the module, which grows
   * @param {(text: string) => void} print what the module says of itself
   */
  constructor(files, memory, print) {
    this.files = files;
    this.memory = memory;
    this.print = print;
    /** @type {(OpenFile | undefined)[]} */
    this.opened = [undefined, undefined, undefined, { node: files.root, at: 0, appends: false }];
  }

  view() {
    return new DataView(this.memory().buffer);
  }

  /** @param {number} at @param {number} length */
  bytes(at, length) {
    return new Uint8Array(this.memory().buffer, at, length);
  }

  /** @param {number} at @param {number} length */
  text(at, length) {
    return new TextDecoder().decode(this.bytes(at, length).slice());
  }

  /** @param {number} at @param {number} value */
  number(at, value) {
    this.view().setUint32(at, value, true);
  }

  /** @param {number} at @param {number | bigint} value */
  long(at, value) {
    this.view().setBigUint64(at, BigInt(value), true);
  }

  /** The memories that a list names. @param {number} list @param {number} count */
  parts(list, count) {
    const words = this.view();
    return Array.from({ length: count }, (_, n) =>
      this.bytes(words.getUint32(list + 8 * n, true), words.getUint32(list + 8 * n + 4, true)));
  }

  /** @param {number} fd @returns {(OpenFile & {node: MemoryFile}) | null} */
  file(fd) {
    const open = this.opened[fd];
    return open && !("names" in open.node) ? /** @type {any} */ (open) : null;
  }

  /** @param {number} at @param {MemoryFile | MemoryFolder} node */
  describe(at, node) {
    this.bytes(at, 64).fill(0);
    this.long(at + 8, node.id);
    this.view().setUint8(at + 16, "names" in node ? FOLDER_TYPE : FILE_TYPE);
    this.long(at + 24, 1);
    this.long(at + 32, "names" in node ? 0 : node.size);
    return DONE;
  }

  /** @param {number} fd @param {number} list @param {number} count @param {number} from @param {number} told */
  read(fd, list, count, from, told) {
    const open = this.file(fd);
    if (!open) return { code: this.opened[fd] ? IS_FOLDER : BAD_FILE, end: from };
    let at = from;
    for (const part of this.parts(list, count)) {
      const piece = open.node.bytes.subarray(at, Math.max(at, Math.min(open.node.size, at + part.length)));
      part.set(piece);
      at += piece.length;
    }
    this.number(told, at - from);
    return { code: DONE, end: at };
  }

  /** @param {number} fd @param {number} list @param {number} count @param {number} from @param {number} told */
  write(fd, list, count, from, told) {
    const all = this.parts(list, count);
    const length = all.reduce((sum, part) => sum + part.length, 0);
    this.number(told, length);
    if (fd === 1 || fd === 2) {
      this.print(all.map((part) => new TextDecoder().decode(part.slice())).join(""));
      return { code: DONE, end: 0 };
    }
    const open = this.file(fd);
    if (!open) return { code: BAD_FILE, end: from };
    let at = open.appends ? open.node.size : from;
    resize(open.node, Math.max(open.node.size, at + length));
    for (const part of all) {
      open.node.bytes.set(part, at);
      at += part.length;
    }
    return { code: DONE, end: at };
  }

  /** @param {number} fd @param {(open: OpenFile) => {code: number, end: number}} step */
  moves(fd, step) {
    const open = this.opened[fd] ?? { node: this.files.root, at: 0, appends: false };
    const { code, end } = step(open);
    open.at = end;
    return code;
  }

  /** Reading and writing. */
  streams() {
    return {
      /** @type {(fd: number, list: number, count: number, told: number) => number} */
      fd_read: (fd, list, count, told) => this.moves(fd, (open) => this.read(fd, list, count, open.at, told)),
      /** @type {(fd: number, list: number, count: number, at: bigint, told: number) => number} */
      fd_pread: (fd, list, count, at, told) => this.read(fd, list, count, Number(at), told).code,
      /** @type {(fd: number, list: number, count: number, told: number) => number} */
      fd_write: (fd, list, count, told) => this.moves(fd, (open) => this.write(fd, list, count, open.at, told)),
      /** @type {(fd: number, list: number, count: number, at: bigint, told: number) => number} */
      fd_pwrite: (fd, list, count, at, told) => this.write(fd, list, count, Number(at), told).code,
      /** @type {(fd: number, by: bigint, whence: number, told: number) => number} */
      fd_seek: (fd, by, whence, told) => {
        const open = this.file(fd);
        if (!open) return BAD_FILE;
        open.at = ([0, open.at, open.node.size][whence] ?? 0) + Number(by);
        this.long(told, open.at);
        return DONE;
      },
      /** @type {(fd: number, told: number) => number} */
      fd_tell: (fd, told) => {
        this.long(told, this.opened[fd]?.at ?? 0);
        return DONE;
      },
      /** @param {number} fd */
      fd_close: (fd) => {
        delete this.opened[fd];
        return DONE;
      },
      /** @type {(fd: number, size: bigint) => number} */
      fd_filestat_set_size: (fd, size) => {
        const open = this.file(fd);
        if (!open) return BAD_FILE;
        resize(open.node, Number(size));
        return DONE;
      },
    };
  }

  /** What is known of files and folders. */
  records() {
    return {
      /** @type {(fd: number, to: number) => number} */
      fd_prestat_get: (fd, to) => {
        if (fd !== ROOT) return BAD_FILE;
        this.number(to, 0);
        this.number(to + 4, 1);
        return DONE;
      },
      /** @type {(fd: number, to: number) => number} */
      fd_prestat_dir_name: (_, to) => {
        this.view().setUint8(to, 47);
        return DONE;
      },
      /** @type {(fd: number, to: number) => number} */
      fd_fdstat_get: (fd, to) => {
        const open = this.opened[fd];
        if (!open && fd > 2) return BAD_FILE;
        this.bytes(to, 24).fill(0);
        this.view().setUint8(to, open ? ("names" in open.node ? FOLDER_TYPE : FILE_TYPE) : 2);
        this.long(to + 8, 0xffffffffffffffffn);
        this.long(to + 16, 0xffffffffffffffffn);
        return DONE;
      },
      /** @type {(fd: number, to: number) => number} */
      fd_filestat_get: (fd, to) => {
        const open = this.opened[fd];
        return open ? this.describe(to, open.node) : BAD_FILE;
      },
      /** @type {(fd: number, follow: number, path: number, length: number, to: number) => number} */
      path_filestat_get: (_, _follow, path, length, to) => {
        const node = this.files.find(this.text(path, length));
        return node ? this.describe(to, node) : MISSING;
      },
      /** @type {(fd: number, to: number, room: number, cookie: bigint, told: number) => number} */
      fd_readdir: (fd, to, room, cookie, told) => {
        const node = this.opened[fd]?.node;
        if (!node || !("names" in node)) return NO_FOLDER;
        let used = 0;
        for (const [n, [name, entry]] of [...node.names].entries()) {
          if (n < Number(cookie) || used === room) continue;
          const letters = new TextEncoder().encode(name);
          const record = new DataView(new ArrayBuffer(24 + letters.length));
          record.setBigUint64(0, BigInt(n + 1), true);
          record.setBigUint64(8, BigInt(entry.id), true);
          record.setUint32(16, letters.length, true);
          record.setUint8(20, "names" in entry ? FOLDER_TYPE : FILE_TYPE);
          const whole = new Uint8Array(record.buffer);
          whole.set(letters, 24);
          const fits = whole.subarray(0, room - used);
          this.bytes(to + used, fits.length).set(fits);
          used += fits.length;
        }
        this.number(told, used);
        return DONE;
      },
    };
  }

  /** What is done with names. */
  paths() {
    return {
      /**
       * @type {(fd: number, follow: number, path: number, length: number, how: number, rights: bigint, passed: bigint,
       *   flags: number, told: number) => number}
       */
      path_open: (_, _follow, path, length, how, _rights, _passed, flags, told) => {
        const name = this.text(path, length);
        let node = this.files.find(name);
        if (node && (how & 5) === 5) return EXISTS;
        if (!node) {
          if (!(how & 1) || !this.files.place(name)) return MISSING;
          this.files.write(name, new Uint8Array());
          node = this.files.find(name);
        }
        if (!node) return MISSING;
        if (how & 2 && !("names" in node)) return NO_FOLDER;
        if (how & 8 && !("names" in node)) resize(node, 0);
        this.number(told, this.opened.push({ node, at: 0, appends: (flags & 1) === 1 }) - 1);
        return DONE;
      },
      /** @type {(fd: number, path: number, length: number) => number} */
      path_create_directory: (_, path, length) => this.files.makeFolder(this.text(path, length)),
      /** @type {(fd: number, path: number, length: number) => number} */
      path_remove_directory: (_, path, length) => this.files.remove(this.text(path, length), true),
      /** @type {(fd: number, path: number, length: number) => number} */
      path_unlink_file: (_, path, length) => this.files.remove(this.text(path, length), false),
      /** @type {(fd: number, from: number, length: number, fd2: number, to: number, length2: number) => number} */
      path_rename: (_, from, length, _fd, to, length2) =>
        this.files.rename(this.text(from, length), this.text(to, length2)),
      /** There are no links. @type {() => number} */
      path_readlink: () => INVALID,
    };
  }

  /** Clock, chance, and the end. */
  rest() {
    return {
      /** @type {(clock: number, precision: bigint, told: number) => number} */
      clock_time_get: (clock, _, told) => {
        this.long(told, BigInt(Math.round((clock === 0 ? Date.now() : performance.now()) * 1e3)) * 1000n);
        return DONE;
      },
      /** @type {(to: number, length: number) => number} */
      random_get: (to, length) => {
        for (let at = 0; at < length; at += 65536) {
          const drawn = crypto.getRandomValues(new Uint8Array(Math.min(65536, length - at)));
          this.bytes(to + at, drawn.length).set(drawn);
        }
        return DONE;
      },
      /** @param {number} code */
      proc_exit: (code) => {
        throw new Error(`the module ended with ${code}`);
      },
      /** @type {(count: number, size: number) => number} */
      environ_sizes_get: (count, size) => {
        this.number(count, 0);
        this.number(size, 0);
        return DONE;
      },
    };
  }
}

/**
 * The functions of `wasi_snapshot_preview1`.
 * @param {MemoryFiles} files
 * @param {() => WebAssembly.Memory} memory of the module, which grows
 * @param {(text: string) => void} print what the module says of itself
 */
export function wasi(files, memory, print) {
  const system = new WasiSystem(files, memory, print);
  const known = { ...system.streams(), ...system.records(), ...system.paths(), ...system.rest() };
  // what is left has nothing to do here: there is no environment, and nobody else to wait for
  return new Proxy(known, { get: (all, name) => Reflect.get(all, name) ?? (() => DONE), has: () => true });
}
