// Tiles: pieces of a matrix of at most 256 x 256 cells, as the server sends them, and the memory for those that were
// seen.
// A byte is a code, not a number: it says a number well enough for a colour. What is written as a number is asked for.

/**
 * @typedef {object} Tile
 * @property {number} index in the request
 * @property {number} code 0: numbers; 2, 3, 4: codes
 * @property {number} level each cell stands for 2^level x 2^level
 * @property {boolean} infinite whether something in it is not finite
 * @property {boolean} masked whether a mask hides something
 * @property {number} rows
 * @property {number} cols
 * @property {number} row0 its first row, in cells of this level
 * @property {number} col0
 * @property {number} low what the codes span
 * @property {number} high
 * @property {number} min of the numbers themselves
 * @property {number} max
 * @property {Uint8Array | Float32Array} data
 */

const HEADER = 64;

/** Cells of a tile, each way. */
export const SIDE = 256;

/**
 * Tiles of a stream, wherever the network cut it.
 * @param {AsyncIterable<Uint8Array>} bytes
 * @returns {AsyncGenerator<Tile>}
 */
export async function* frames(bytes) {
  let rest = new Uint8Array(0);
  for await (const chunk of bytes) {
    const joined = new Uint8Array(rest.length + chunk.length);
    joined.set(rest);
    joined.set(chunk, rest.length);
    rest = joined;
    while (rest.length >= HEADER) {
      const length = new DataView(rest.buffer, rest.byteOffset).getUint32(4, true);
      if (String.fromCharCode(...rest.subarray(0, 4)) !== "LTL1" || length < HEADER) {
        throw new Error("the answer is not a tile");
      }
      if (rest.length < length) break;
      yield tileIn(rest.slice(0, length));
      rest = rest.subarray(length);
    }
  }
  if (rest.length > 0) throw new Error("the last tile is cut");
}

/**
 * @param {Uint8Array<ArrayBuffer>} frame
 * @returns {Tile}
 */
function tileIn(frame) {
  const view = new DataView(frame.buffer);
  const u32 = (/** @type {number} */ at) => view.getUint32(at, true);
  const f32 = (/** @type {number} */ at) => view.getFloat32(at, true);
  const [code, flags, level] = [view.getUint8(12), view.getUint8(14), view.getUint8(15)];
  const [rows, cols] = [u32(16), u32(20)];
  const data =
    code === 0 ? new Float32Array(frame.buffer, HEADER, rows * cols) : frame.subarray(HEADER, HEADER + rows * cols);
  return {
    index: u32(8), code, level, infinite: (flags & 2) !== 0, masked: (flags & 4) !== 0, rows, cols, row0: u32(24),
    col0: u32(28),
    low: f32(40), high: f32(44), min: f32(48), max: f32(52), data,
  };
}

/**
 * The numbers of the 256 codes: NaN for what is masked, infinite for what is not finite.
 * @param {number} code
 * @param {number} low
 * @param {number} high
 */
export function valuesOfCodes(code, low, high) {
  const values = new Float32Array(256);
  for (let q = 1; q < 255; q++) {
    if (code === 2) values[q] = low + ((q - 1) / 253) * (high - low);
    else if (code === 3) values[q] = high * 2 ** ((q - 254) / 16);
    else values[q] = Math.sign(q - 127.5) * high * 2 ** ((Math.abs(q - 127.5) - 126.5) / 8);
  }
  // the least code of the logarithms stands for all that is smaller, too
  if (code === 3) values[1] = 0;
  if (code === 4) values[127] = values[128] = 0;
  values[0] = NaN;
  values[255] = Infinity;
  return values;
}

/**
 * @param {Tile} tile
 * @param {number} row of this tile
 * @param {number} col
 */
export function valueInTile(tile, row, col) {
  const byte = tile.data[row * tile.cols + col] ?? 0;
  return tile.code === 0 ? byte : (valuesOfCodes(tile.code, tile.low, tile.high)[byte] ?? NaN);
}

/** @param {Tile} tile */
const weight = (tile) => tile.data.byteLength + 4 * tile.rows * tile.cols;

/**
 * Keeps tiles by a key; those that were not used for longest go first. A tile weighs its data and its pixels.
 * @param {number} limit bytes
 */
export function tileCache(limit) {
  /** @type {Map<string, Tile>} */
  const kept = new Map();
  let bytes = 0;
  return {
    bytes: () => bytes,
    /** @param {string} key */
    get(key) {
      const tile = kept.get(key);
      if (tile) {
        kept.delete(key);
        kept.set(key, tile);
      }
      return tile;
    },
    /** @param {string} key @param {Tile} tile */
    put(key, tile) {
      const old = kept.get(key);
      kept.delete(key);
      kept.set(key, tile);
      bytes += weight(tile) - (old ? weight(old) : 0);
      for (const [other, least] of kept) {
        if (bytes <= limit || other === key) break;
        kept.delete(other);
        bytes -= weight(least);
      }
    },
  };
}
