// What a file holds that was saved: by name, each deflated. A saved page holds answers, a live one a model.

/**
 * The bytes of numbers, of which the first ones stand first, then the second ones, and so on.
 * @param {Uint8Array} bytes @param {number} apart bytes of a number
 */
function together(bytes, apart) {
  const numbers = new Uint8Array(bytes.length);
  let from = 0;
  for (let n = 0; n < apart; n++) {
    for (let to = n; to < numbers.length; to += apart) numbers[to] = bytes[from++] ?? 0;
  }
  return numbers;
}

/** What a file holds, by name. */
export class Archive {
  /** @param {string} text in base64: the size of the index, the index, the answers */
  constructor(text) {
    this.bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    this.start = 4 + new DataView(this.bytes.buffer).getUint32(0, true);
    /**
     * Where each begins, its length, and where the bytes of numbers stand apart, how many bytes a number has.
     * @type {Record<string, [number, number, number?]>}
     */
    this.index = JSON.parse(new TextDecoder().decode(this.bytes.subarray(4, this.start)));
  }

  /** The one in this document, if there is one. */
  static ofPage() {
    const text = document.getElementById("saved")?.textContent?.trim();
    return text ? new Archive(text) : null;
  }

  names() {
    return Object.keys(this.index);
  }

  /** @param {string} key */
  has(key) {
    return Object.hasOwn(this.index, key);
  }

  /** @param {string} key @returns {ReadableStream<Uint8Array> | null} */
  open(key) {
    const place = this.has(key) && this.index[key];
    if (!place) return null;
    const from = this.start + place[0];
    const stored = new Blob([this.bytes.slice(from, from + place[1])]);
    return stored.stream().pipeThrough(new DecompressionStream("deflate-raw"));
  }

  /** @param {string} key */
  async json(key) {
    const found = this.open(key);
    return found ? new Response(found).json() : null;
  }

  /** @param {string} key */
  async bytesOf(key) {
    const bytes = new Uint8Array(await new Response(this.open(key)).arrayBuffer());
    const apart = this.index[key]?.[2];
    return apart ? together(bytes, apart) : bytes;
  }
}
