// What peers in Node share: the tally, with the layout of forebay_proof/tally.py, clocks, and the load. The tally is written
// when it is flushed, not at every job.
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const path = require("path");

const CHANNELS = ["claim", "enqueue", "late", "whole", "cpu"];
const COUNTERS = 2;
const BUCKETS = 1100;
const GROWTH = Math.log(1.02);
const MIN_SECONDS = 1e-6;
const BULK = 1000;
const FLUSH_MS = 4;

const bucketOf = (seconds) =>
  seconds > MIN_SECONDS ? Math.min(BUCKETS - 1, Math.ceil(Math.log(seconds / MIN_SECONDS) / GROWTH)) : 0;

class Tally {
  constructor(folder) {
    fs.mkdirSync(folder, { recursive: true });
    this.file = fs.openSync(path.join(folder, `${process.pid}.tally`), "w+");
    this.numbers = new BigUint64Array(COUNTERS + (1 + BUCKETS) * CHANNELS.length);
    this.changed = new Set();
    this.jobs = 0;
    fs.ftruncateSync(this.file, this.numbers.byteLength);
  }

  add(channel, seconds) {
    const first = COUNTERS + CHANNELS.indexOf(channel) * (1 + BUCKETS);
    this.#increase(first, BigInt(Math.max(0, Math.trunc(seconds * 1e9))));
    this.#increase(first + 1 + bucketOf(seconds), 1n);
  }

  #increase(place, by) {
    this.numbers[place] += by;
    this.changed.add(place);
  }

  flush() {
    this.numbers[0] = BigInt(this.jobs);
    for (const place of [...this.changed, 0]) {
      fs.writeSync(this.file, new Uint8Array(this.numbers.buffer, 8 * place, 8), 0, 8, 8 * place);
    }
    this.changed.clear();
  }
}

const now = () => Number(process.hrtime.bigint()) / 1e9;

const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

function payloads(count) {
  const made = Array.from({ length: BULK }, (_, seq) => ({
    seq,
    to: "ada@example.com",
    data: crypto.randomBytes(28).toString("hex"),
  }));
  return Array.from({ length: count }, (_, n) => made[n % BULK]);
}

// Single jobs that carry the time of their call, evenly spaced, until the process is stopped. The clock is the machine's,
// the same in all processes.
async function drip(rate, add) {
  for (let at = now(); ; at = Math.max(at + 1 / rate, now() - 0.1)) {
    await new Promise((go) => setTimeout(go, Math.max(0, (at - now()) * 1000)));
    await add({ due: now() });
  }
}

const count = (tally, payload) => {
  if (payload.due !== undefined) tally.add("late", now() - payload.due);
  tally.jobs += 1;
};

module.exports = { BULK, FLUSH_MS, Tally, count, cpu, drip, now, payloads };
