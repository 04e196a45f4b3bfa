// What peers in Node share: the tally, with the layout of bench/crew/tally.py, clocks, and the load. The tally is written
// when it is flushed, not at every job.
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const path = require("path");

const CHANNELS = ["claim", "enqueue", "late", "whole", "cpu"];
const KEPT = 1 << 17;
const HEAD = 1 + CHANNELS.length;
const BULK = 1000;
const FLUSH_MS = 4;

class Tally {
  constructor(folder) {
    fs.mkdirSync(folder, { recursive: true });
    this.file = fs.openSync(path.join(folder, `${process.pid}.tally`), "w+");
    this.head = new BigUint64Array(HEAD);
    this.jobs = 0;
    this.waiting = CHANNELS.map(() => []);
    fs.ftruncateSync(this.file, 8 * (HEAD + KEPT * CHANNELS.length));
  }

  add(channel, seconds) {
    this.waiting[CHANNELS.indexOf(channel)].push(seconds);
  }

  flush() {
    this.waiting.forEach((samples, number) => {
      for (const seconds of samples.splice(0)) {
        const place = HEAD + number * KEPT + (Number(this.head[1 + number]) % KEPT);
        fs.writeSync(this.file, new Uint8Array(Float64Array.of(seconds).buffer), 0, 8, 8 * place);
        this.head[1 + number] += 1n;
      }
    });
    this.head[0] = BigInt(this.jobs);
    fs.writeSync(this.file, new Uint8Array(this.head.buffer), 0, 8 * HEAD, 0);
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
