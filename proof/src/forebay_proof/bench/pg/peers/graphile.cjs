// graphile-worker as a benchmark client: `prepare URL`, `put URL JOBS`, `drip URL RATE`, `work URL LOCAL CONCURRENT`. NODE_PATH says where it is.
"use strict";

const path = require("path");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const getJobs = require(path.join(process.env.NODE_PATH, "graphile-worker", "dist", "sql", "getJobs.js"));
const { BULK, FLUSH_MS, Tally, count, cpu, drip, now, payloads } = require("../../clients/tally.cjs");

const logger = new Logger(() => () => {});

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
  const email = async (payload) => count(tally, payload);
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
  const tally = new Tally(process.env.FOREBAY_TALLY);
  if (what === "work") return work(url, Number(counts[0]), Number(counts[1]), tally);
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  if (what === "prepare") await utils.migrate();
  else if (what === "drip") await drip(Number(counts[0]), (payload) => utils.addJob("email", payload));
  else await put(utils, Number(counts[0]), tally);
  await utils.release();
  tally.flush();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
