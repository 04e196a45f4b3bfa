// What nap.py is to the peers in Python.
"use strict";

const fs = require("fs");

const SECONDS = 3;

const note = (what, number) =>
  fs.appendFileSync(process.env.FOREBAY_BENCH_NOTES, `${what} ${number} ${(Date.now() / 1000).toFixed(3)}\n`);

async function nap(number) {
  note("start", number);
  await new Promise((go) => setTimeout(go, SECONDS * 1000));
  note("end", number);
}

const run = (main) =>
  main(process.env.FOREBAY_URL, process.argv[2], Number(process.argv[3] ?? 0)).catch((error) => {
    console.error(error);
    process.exit(1);
  });

module.exports = { nap, run };
