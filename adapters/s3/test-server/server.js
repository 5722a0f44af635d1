// SPDX-License-Identifier: Apache-2.0
//
// An S3 server for tests: s3rver, which has the protocol and checks signatures (version 4), over objects in memory, since
// its own files are neither replaced at once nor listed in the order of S3.
//
//	node server.js ACCESS_KEY SECRET_KEY PORT_FILE PORT BUCKET...
//
// PORT 0: any. PORT_FILE gets the one that it is, when it answers.

'use strict';

const fs = require('fs');
const { createHash } = require('crypto');
const { Readable } = require('stream');
// In queries that are signed, as AWS has it.
const encode = encodeURIComponent;
global.encodeURIComponent = (text) =>
  encode(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
// What makes XML of an answer escapes it as well.
require('he').escape = (text) => text;
const S3rver = require('@20minutes/s3rver');
const account = require('@20minutes/s3rver/lib/models/account').DUMMY_ACCOUNT;
const S3Bucket = require('@20minutes/s3rver/lib/models/bucket');
const S3Object = require('@20minutes/s3rver/lib/models/object');

// As UTF-8, which is another order than that of UTF-16 only beyond its first 65536 characters.
const compare = (a, b) => (a < b ? -1 : Number(a > b));

// Where the first element that is not before KEY would be in KEYS, which are in order.
function search(keys, key) {
  let from = 0;
  for (let to = keys.length; from < to; ) {
    const middle = (from + to) >> 1;
    if (compare(keys[middle], key) < 0) from = middle + 1;
    else to = middle;
  }
  return from;
}

class MemoryStore {
  constructor() {
    this.buckets = new Map(); // name -> Map of key -> {data, metadata}
    this.sorted = new Map(); // name -> keys in order, if nothing came or went since
  }

  async getBucket(name) {
    return this.buckets.has(name) ? new S3Bucket(name, new Date(0)) : null;
  }

  async putBucket(name) {
    if (!this.buckets.has(name)) this.buckets.set(name, new Map());
    return this.getBucket(name);
  }

  async getSubresource() {
    return null;
  }

  object(bucket, key, { data, metadata }) {
    return new S3Object(bucket, key, Readable.from([data], { objectMode: false }), metadata);
  }

  async listObjects(bucket, { startAfter = '', prefix = '', maxKeys = Infinity }) {
    const objects = this.buckets.get(bucket);
    if (!this.sorted.has(bucket)) this.sorted.set(bucket, [...objects.keys()].sort(compare));
    const keys = this.sorted.get(bucket);
    const found = [];
    let i = search(keys, compare(startAfter, prefix) > 0 ? startAfter : prefix);
    if (keys[i] === startAfter) i++;
    while (i < keys.length && keys[i].startsWith(prefix) && found.length < maxKeys) found.push(keys[i++]);
    return {
      objects: found.map((key) => new S3Object(bucket, key, null, objects.get(key).metadata)),
      commonPrefixes: [],
      isTruncated: i < keys.length && keys[i].startsWith(prefix),
    };
  }

  async existsObject(bucket, key) {
    return this.buckets.get(bucket).has(key);
  }

  async getObject(bucket, key) {
    const found = this.buckets.get(bucket).get(key);
    return found ? this.object(bucket, key, found) : null;
  }

  put(bucket, key, data, headers) {
    const { metadata } = new S3Object(bucket, key, null, headers);
    const md5 = createHash('md5').update(data).digest('hex');
    Object.assign(metadata, {
      etag: JSON.stringify(md5),
      'last-modified': new Date().toUTCString(),
      'content-length': data.length,
    });
    if (!this.buckets.get(bucket).has(key)) this.sorted.delete(bucket);
    this.buckets.get(bucket).set(key, { data, metadata });
    return { size: data.length, md5 };
  }

  // Visible when it is whole, and not at all if it never is.
  async putObject({ bucket, key, content, metadata }) {
    const parts = [];
    for await (const part of content) parts.push(part);
    return this.put(bucket, key, Buffer.concat(parts), metadata);
  }

  async copyObject(fromBucket, from, toBucket, to, headers) {
    const { data, metadata } = this.buckets.get(fromBucket).get(from);
    this.put(toBucket, to, data, headers || metadata);
    return this.buckets.get(toBucket).get(to).metadata;
  }

  async deleteObject(bucket, key) {
    if (this.buckets.get(bucket).delete(key)) this.sorted.delete(bucket);
  }
}

const [accessKey, secretKey, portFile, port, ...buckets] = process.argv.slice(2);
account.createKeyPair(accessKey, secretKey);
const server = new S3rver({
  address: '127.0.0.1',
  port: Number(port),
  silent: !process.env.S3RVER_LOG,
  vhostBuckets: false,
  configureBuckets: buckets.map((name) => ({ name })),
});
server.store = server.context.store = new MemoryStore();
if (!process.env.S3RVER_LOG) {
  // What it logs takes it longer than what it does.
  server.middleware.shift();
  server.context.logger = { info() {}, warn() {}, error() {} };
  Error.stackTraceLimit = 0;
}
server.on('error', (e) => process.env.S3RVER_LOG && console.error(e));
server.run().then(
  (address) => {
    server.httpServer.keepAliveTimeout = 60000;
    fs.writeFileSync(`${portFile}.new`, `${address.port}\n`);
    fs.renameSync(`${portFile}.new`, portFile);
  },
  (error) => {
    console.error(error.message);
    process.exit(1);
  },
);
