// The page of a server, or one that was saved. It does something by being loaded.
import { App } from "./app.js";

const start = () => new App(null);

start();
