// graphile-worker as a benchmark client: `prepare URL`, `put URL JOBS`, `work URL LOCAL CONCURRENT`. NODE_PATH says where it is.
// The tally has the layout of bench/pg/tally.py; it is written every few milliseconds, not at every job.
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const path = require("path");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const getJobs = require(path.join(process.env.NODE_PATH, "graphile-worker", "dist", "sql", "getJobs.js"));

const CHANNELS = ["claim", "enqueue", "late", "whole", "cpu"];
const KEPT = 1 << 17;
const HEAD = 1 + CHANNELS.length;
const BULK = 1000;
const FLUSH_MS = 4;
const logger = new Logger(() => () => {});

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

async function put(utils, jobs, tally) {
  const loads = payloads(jobs);
  let start = 0;
  const some = async () => {
    while (start < jobs) {
      const part = loads.slice(start, start + BULK);
      start += BULK;
      const began = now();
      await utils.addJobs(part.map((payload) => ({ identifier: "email", payload })));
      tally.add("enqueue", now() - began);
    }
  };
  await utils.withPgClient((client) => client.query("select 1"));
  const [began, spent] = [now(), cpu()];
  await Promise.all([some(), some()]);
  tally.add("whole", now() - began);
  tally.add("cpu", cpu() - spent);
  tally.jobs += jobs;
}

async function work(url, local, concurrent, tally) {
  const real = getJobs.batchGetJobs;
  getJobs.batchGetJobs = async (...given) => {
    const began = now();
    const jobs = await real(...given);
    if (jobs.length > 0) tally.add("claim", now() - began);
    return jobs;
  };
  setInterval(() => tally.flush(), FLUSH_MS);
  const email = async () => {
    tally.jobs += 1;
  };
  const worker = {
    connectionString: url,
    logger,
    concurrentJobs: concurrent,
    maxPoolSize: 25,
    localQueue: { size: local },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  };
  const runner = await run({ preset: { worker }, taskList: { email } });
  await runner.promise;
  tally.flush();
  process.exit(0);
}

async function main(what, url, ...counts) {
  const tally = new Tally(process.env.FOREBAY_BENCH_TALLY);
  if (what === "work") return work(url, Number(counts[0]), Number(counts[1]), tally);
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  if (what === "prepare") await utils.migrate();
  else await put(utils, Number(counts[0]), tally);
  await utils.release();
  tally.flush();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
