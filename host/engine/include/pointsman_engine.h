/* The ABI between Pointsman and an engine's driver: a shared library that reads and sets a native
 * scheduler's knobs, opens profiling windows, and chooses kernels.
 *
 * A driver exports one function, `pointsman_engine_v1`, which returns its table. Rules for all of it:
 *
 * Threads    The host has one thread for each driver and makes every call on it, one at a time: from
 *            `open` to `close` a handle is never used by two threads. A driver may have threads of its
 *            own; they never call the host, which has nothing to be called.
 * Time       Whoever waits for a call stops waiting after a deadline (1 s unless configured), and the
 *            call's result is thrown away. Calls that come meanwhile are refused. A call that never
 *            returns costs the host one thread and the use of this driver, nothing else.
 * Ownership  What the host passes (names, configuration, buffers, the message) is the host's, and valid
 *            until the call returns. What a driver points to in its answers (names, units) is the
 *            driver's, and valid until the next call with the same handle. Nobody frees the other's.
 * Bytes      Pointer and length, UTF-8, not terminated; an empty one may have a null pointer. Control
 *            characters make a name or unit invalid, and become spaces in a message.
 * Errors     A code, and text for people in `message`, if it is not null. Output parameters count only
 *            with POINTSMAN_OK. Lengths and counts beyond what is allowed here make the answer invalid.
 * Crashes    A driver runs in the host's process: what it corrupts is corrupt, and if it crashes, so
 *            does the host. No exception, panic or longjmp may leave a function.
 * Growth     Functions are only ever added, at the end. `size` says which are there; those behind it
 *            are as if null. Another meaning for what is here is another version and another symbol.
 */
#ifndef POINTSMAN_ENGINE_H
#define POINTSMAN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define POINTSMAN_ENGINE_VERSION 1u

/* Every rank at once. */
#define POINTSMAN_ALL_RANKS UINT32_MAX

/* The most bytes of a name, a unit, a kernel's name. */
#define POINTSMAN_NAME_BYTES 256

/* The most bytes of a rank's trace; of a longer one nothing is kept. */
#define POINTSMAN_TRACE_BYTES (64u << 20)

typedef enum pointsman_code {
  POINTSMAN_OK = 0,
  /* No such knob, number, operation, kernel or rank. */
  POINTSMAN_UNKNOWN = 1,
  /* The engine did not answer, or refuses. */
  POINTSMAN_UNAVAILABLE = 2,
  /* The value or configuration cannot be. */
  POINTSMAN_INVALID = 3
} pointsman_code;

typedef struct pointsman_bytes {
  const char *data;
  size_t length;
} pointsman_bytes;

/* Room for text, the host's. The driver writes at most `capacity` bytes and sets `length`. */
typedef struct pointsman_message {
  char *data;
  size_t capacity;
  size_t length;
} pointsman_message;

/* An engine that is driven: the driver's, opaque to the host. */
typedef struct pointsman_engine pointsman_engine;

/* A setting of the scheduler, `low` to `high`. */
typedef struct pointsman_knob {
  pointsman_bytes name;
  pointsman_bytes unit;
  int64_t low;
  int64_t high;
  int64_t value;
} pointsman_knob;

/* One way to compute an operation, for `low_m` to `high_m` rows over `ranks` ranks. */
typedef struct pointsman_kernel {
  pointsman_bytes name;
  uint32_t low_m;
  uint32_t high_m;
  uint32_t ranks;
  /* 1: the one in use. */
  uint32_t chosen;
  /* Its last timing; 0: none. */
  uint64_t nanoseconds;
} pointsman_kernel;

typedef struct pointsman_engine_v1_table {
  /* sizeof(pointsman_engine_v1_table), as the driver was compiled. */
  size_t size;
  /* POINTSMAN_ENGINE_VERSION. */
  uint32_t version;
  uint32_t reserved;

  /* --- Wanted of every driver. Each is called on the driver's thread (see Threads). --- */

  /* Begins: `config` is JSON, {"name": …, "url": …, "config": {…}}: which endpoint of the host's
   * configuration it drives, and the driver's own settings, which stand there under `driver.config`. Sets
   * `*engine`, which is the driver's until `close`. */
  int32_t (*open)(pointsman_bytes config, pointsman_engine **engine, pointsman_message *message);
  /* Ends; the handle is not used again. Called once for each handle that `open` gave, also when the host
   * ends, which waits for it no longer than the deadline of a call. */
  void (*close)(pointsman_engine *engine);
  /* How many ranks there are: 0 to `*ranks` - 1. */
  int32_t (*ranks)(pointsman_engine *engine, uint32_t *ranks, pointsman_message *message);
  /* Writes the first `capacity` knobs of a rank to `knobs`, and sets `*count` to how many were written. */
  int32_t (*knobs)(pointsman_engine *engine, uint32_t rank, pointsman_knob *knobs, size_t capacity,
                   size_t *count, pointsman_message *message);
  int32_t (*knob_get)(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, int64_t *value,
                      pointsman_message *message);
  /* `rank` may be POINTSMAN_ALL_RANKS. All of them are set, or none. */
  int32_t (*knob_set)(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, int64_t value,
                      pointsman_message *message);
  /* A number that the engine reports. */
  int32_t (*stat)(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, double *value,
                  pointsman_message *message);

  /* --- May be null: then they are answered with POINTSMAN_UNKNOWN. --- */

  /* A profiling window begins. The host ends it, also one with a duration. What `profile_read` gave of
   * the window before may be dropped. */
  int32_t (*profile_start)(pointsman_engine *engine, pointsman_message *message);
  /* It ends. With POINTSMAN_OK, `message` may say what there is to say: a summary, where the trace is. */
  int32_t (*profile_stop)(pointsman_engine *engine, pointsman_message *message);
  /* As `knobs`, for the ways to compute `operation`. */
  int32_t (*kernels)(pointsman_engine *engine, uint32_t rank, pointsman_bytes operation,
                     pointsman_kernel *kernels, size_t capacity, size_t *count,
                     pointsman_message *message);
  /* Takes kernel `name` for `low_m` to `high_m` rows; `rank` may be POINTSMAN_ALL_RANKS. */
  int32_t (*kernel_choose)(pointsman_engine *engine, uint32_t rank, pointsman_bytes operation,
                           pointsman_bytes name, uint32_t low_m, uint32_t high_m,
                           pointsman_message *message);
  /* The trace of a rank, of the last window that ended, piece by piece: JSON in the Chrome trace event
   * format, an object with `traceEvents`, its `ts` microseconds since the Unix epoch, so that engines'
   * traces line up. Copies at most `capacity` bytes that begin `offset` bytes into it to `buffer`, which
   * is the host's, and sets `*length` to how many; 0: there are no more. The host begins at 0 and goes on
   * where the last piece ended, rank by rank, other calls in between; it may also stop half-way. The
   * trace stays as it is until the next `profile_start` or `close`. More than `capacity`, or more than
   * POINTSMAN_TRACE_BYTES in all, makes the trace invalid. POINTSMAN_UNKNOWN: no such rank, no window
   * yet, or traces stay where the engine writes them. */
  int32_t (*profile_read)(pointsman_engine *engine, uint32_t rank, uint64_t offset, char *buffer,
                          size_t capacity, size_t *length, pointsman_message *message);
} pointsman_engine_v1_table;

/* What a driver exports. May be called on any thread, before anything else; returns the same table each
 * time, which lives as long as the library is loaded. */
const pointsman_engine_v1_table *pointsman_engine_v1(void);

#ifdef __cplusplus
}
#endif
#endif
