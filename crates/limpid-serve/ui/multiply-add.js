// WebAssembly's relaxed multiply-add, which limpid's results need rounded once. Where an engine lacks it, or rounds it
// twice, a call of the module's own function `limpid_madd` takes its place, which computes the same bits without it.
// Such a call has as many bytes, so nothing else of the module changes. The numbers are the specification's
// (webassembly.github.io/spec/core/binary).

const EXPORTS = 7;
const CODE = 10;
const CALL = 0x10;
const WITH_PREFIX = 0xfc;
const VECTOR = 0xfd;
const MULTIPLY_ADD = 0x105;
/** The bytes of that number behind its prefix, and of the function's number behind `CALL`. */
const NUMBER_BYTES = 2;

/** A module with one function: (x, sum) => x * x + sum. */
const PROBE = new Uint8Array([
  0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
  1, 7, 1, 0x60, 2, 0x7d, 0x7d, 1, 0x7d, 3, 2, 1, 0, EXPORTS, 5, 1, 1, 0x66, 0, 0,
  CODE, 22, 1, 20, 0, 0x20, 0, VECTOR, 19, 0x20, 0, VECTOR, 19, 0x20, 1, VECTOR, 19, VECTOR, 0x85, 2, VECTOR, 31, 0,
  0x0b,
]);

/** Whether this engine has the instruction and rounds it once. */
export function fuses() {
  if (!WebAssembly.validate(PROBE)) return false;
  /** @type {any} */
  const { f } = new WebAssembly.Instance(new WebAssembly.Module(PROBE)).exports;
  // the exact product is 1 + 2^-11 + 2^-24, and rounded 1 + 2^-11
  return f(1 + 2 ** -12, -1 - 2 ** -11) !== 0;
}

/**
 * What stands behind an opcode: numbers, then single bytes.
 * @param {number} code @param {number} second what stands behind a prefix
 * @returns {[number, number]}
 */
function operands(code, second) {
  if (code === VECTOR) {
    if (second < 12 || second === 92 || second === 93) return [2, 0];
    if (second === 12 || second === 13) return [0, 16];
    if (second > 20 && second < 35) return [0, 1];
    return second > 83 && second < 92 ? [2, 1] : [0, 0];
  }
  if (code === WITH_PREFIX) return [[0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 1, 2, 1, 2, 1, 1, 1][second] ?? 0, 0];
  // numbers of four and of eight bytes
  if (code === 0x43 || code === 0x44) return [0, code === 0x43 ? 4 : 8];
  if (code === 0x11 || code === 0x13 || (code > 0x27 && code < 0x3f)) return [2, 0];
  const one = (code > 1 && code < 5) || code === 0x0c || code === 0x0d || code === CALL || code === 0x12 ||
    (code > 0x1f && code < 0x27) || (code > 0x3e && code < 0x43) || code === 0xd0 || code === 0xd2;
  if (one || code < 2 || code === 5 || code === 0x0b || code === 0x0f || code === 0x1a || code === 0x1b ||
    (code > 0x44 && code < 0xc5) || code === 0xd1) return [one ? 1 : 0, 0];
  throw new Error(`the module has an instruction that is not known here: ${code}`);
}

/** A module that is read from its beginning. */
class ModuleReader {
  at = 8;

  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
  }

  byte() {
    return this.bytes[this.at++] ?? 0;
  }

  /** A number in seven bits a byte; the low 32 bits of a longer one. */
  number() {
    let [value, byte] = [0, 128];
    for (let shift = 0; byte > 127; shift += 7) {
      byte = this.byte();
      if (shift < 32) value |= (byte & 127) << shift;
    }
    return value >>> 0;
  }

  numbers(count = this.number()) {
    for (let n = 0; n < count; n++) this.number();
  }

  /** The number of the function that is exported under this name. @param {string} wanted */
  exported(wanted) {
    for (let count = this.number(); count > 0; count--) {
      const length = this.number();
      const name = new TextDecoder().decode(this.bytes.subarray(this.at, (this.at += length)));
      this.at++;
      const index = this.number();
      if (name === wanted) return index;
    }
    return -1;
  }

  /** Goes through one function. @param {(at: number) => void} found told where each multiply-add is */
  function(found) {
    const length = this.number();
    const end = this.at + length;
    for (let locals = this.number(); locals > 0; locals--) this.numbers(2);
    while (this.at < end) {
      const at = this.at;
      const code = this.byte();
      const second = code === WITH_PREFIX || code === VECTOR ? this.number() : 0;
      if (code === VECTOR && second === MULTIPLY_ADD) found(at);
      // a table of branches and one more, and the types of a choice
      if (code === 0x0e || code === 0x1c) {
        this.numbers();
        if (code === 0x0e) this.number();
      } else {
        const [numbers, bytes] = operands(code, second);
        this.numbers(numbers);
        this.at += bytes;
      }
    }
  }
}

/**
 * Puts calls of `limpid_madd` in the place of the instruction.
 * @param {Uint8Array} module
 */
export function replaceMultiplyAdds(module) {
  const reader = new ModuleReader(module);
  let index = -1;
  while (reader.at < module.length) {
    const section = reader.byte();
    const length = reader.number();
    const end = reader.at + length;
    if (section === EXPORTS) index = reader.exported("limpid_madd");
    if (section === CODE) {
      if (index < 0 || index >= 128 ** NUMBER_BYTES) throw new Error("the module has no function for multiply-adds");
      for (let count = reader.number(); count > 0; count--) {
        reader.function((at) => module.set([CALL, (index & 127) | 128, index >> 7], at));
      }
    }
    reader.at = end;
  }
}
