// node dist/example.js URL KEY: enqueues a job, works it off, and reads its result. The tests run it.

import assert from "node:assert/strict";
import { connect, ForebayProblem } from "./index.js";

const [url = "http://127.0.0.1:8321", key] = process.argv.slice(2);
const forebay = connect(url, { key });

const body = { kind: "greet", queue: "mail", payload: { name: "Ada" }, key: "greet-ada" };
const { data: accepted, error } = await forebay.POST("/jobs", { body });
assert(accepted, JSON.stringify(error));

const again = await forebay.POST("/jobs", { body });
assert.equal(again.response.status, 409);

const { data: found } = await forebay.GET("/jobs", { params: { query: { queue: "mail", payload: ["name=Ada"] } } });
assert.deepEqual(found?.jobs.map((job) => job.id), [accepted.job_id]);

const { data: claimed } = await forebay.POST("/claim", { body: { wants: [{ queue: "mail", count: 1 }] } });
const lease = claimed?.leases[0];
assert(lease);
const ack = { lease: lease.lease, outcome: "ack" as const, result: "Hello, Ada" };
const { data: settled } = await forebay.POST("/settle", { body: { settlements: [ack] } });
assert(settled);

const { data: job } = await forebay.GET("/jobs/{job_id}", { params: { path: { job_id: accepted.job_id } } });
assert.equal(job?.state, "done");
assert.equal(job?.result, "Hello, Ada");

const strict = connect(url, { key, throwing: true });
await assert.rejects(
  strict.GET("/jobs/{job_id}", { params: { path: { job_id: 999_999 } } }),
  (problem) => problem instanceof ForebayProblem && problem.status === 404 && problem.slug === "not-found",
);

// @ts-expect-error: the type of every field is known, so a wrong one does not compile; the server refuses it, too
const refused = await forebay.POST("/jobs", { body: { kind: "greet", priority: "high" } });
assert.equal(refused.response.status, 422);

console.log(`done: ${job.result}`);
