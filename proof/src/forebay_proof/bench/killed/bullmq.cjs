// BullMQ in `bench.recovery`: `put JOBS`, `work`. NODE_PATH says where it is.
"use strict";

const { Queue, Worker } = require("bullmq");
const IORedis = require("ioredis");
const { nap, run } = require("./nap.cjs");

run(async (url, what, jobs) => {
  const connection = new IORedis(url, { maxRetriesPerRequest: null });
  if (what === "work") {
    new Worker("naps", (job) => nap(job.data.number), { connection }).on("error", console.error);
    return;
  }
  const queue = new Queue("naps", { connection });
  for (let number = 0; number < jobs; number++) await queue.add("nap", { number });
  await queue.close();
  connection.disconnect();
});
