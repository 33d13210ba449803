// What this browser keeps of a run, if its owner wants that: one run, whole or not at all, in IndexedDB.

/** @typedef {{name: string, settings: Record<string, string>, place: any, files: Map<string, Uint8Array>}} KeptRun */

const DATABASE = "limpid";
const STORE = "runs";
/** The one key in it. */
const ONLY_RUN = "run";

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const answered = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/**
 * Does something with the store; done when it is on the disk.
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} act
 */
async function inStore(mode, act) {
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => void opening.result.createObjectStore(STORE);
  const database = await answered(opening);
  try {
    const change = database.transaction(STORE, mode);
    const done = new Promise((resolve, reject) => {
      change.oncomplete = resolve;
      change.onabort = () => reject(change.error);
    });
    // the request's own fault ends the change, which says it
    const answer = answered(act(change.objectStore(STORE)));
    answer.catch(() => {});
    await done;
    return await answer;
  } finally {
    database.close();
  }
}

/** @returns {Promise<KeptRun | undefined>} the run that is kept, if one is and the browser lets us see it */
export const keptRun = () => inStore("readonly", (store) => store.get(ONLY_RUN)).catch(() => undefined);

/** Keeps a run in place of the one before. @param {KeptRun} run */
export const keepRun = (run) => inStore("readwrite", (store) => store.put(run, ONLY_RUN));

/** Forgets the run. */
export const forgetRun = () => inStore("readwrite", (store) => store.delete(ONLY_RUN));

/** What the lock is called that the tab has whose run is kept. */
const LOCK = "limpid run";

/**
 * Takes the place of the one tab whose run is kept, until the page is closed. False if another tab has it.
 * @returns {Promise<boolean>}
 */
export function holdPlace() {
  if (!navigator.locks) return Promise.resolve(true);
  return new Promise((resolve) => {
    navigator.locks.request(LOCK, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock && new Promise(() => {}); // held as long as the page is there
    });
  });
}
