/* A driver in C. The engine that it drives is a few numbers in memory; yours would call into the
 * scheduler of the engine, or write to its control socket, where this one touches `struct`.
 *
 * No locks: the host makes all calls of a handle on one thread. */
#include "pointsman_engine.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RANKS = 64, KNOBS = 2, KERNELS = 2 };

static const struct {
  const char *name, *unit;
  int64_t low, high, initial;
} SETTINGS[KNOBS] = {
    {"prefill_decode_interval", "ticks", 0, 1000, 0},
    {"max_queue_ms", "ms", 0, 60000, 5000},
};

static const struct {
  const char *name;
  uint32_t low_m, high_m;
} VARIANTS[KERNELS] = {{"bmm-plain", 1, 512}, {"bmm-tiled", 64, 512}};

struct pointsman_engine {
  uint32_t ranks;
  int64_t knobs[MAX_RANKS][KNOBS];
  uint32_t chosen[MAX_RANKS];
  bool profiling;
  double windows;
  /* The window: since when, and the last one that ended. Microseconds since the Unix epoch. */
  int64_t began, from, until;
  /* How often a rank's knobs were set in it. */
  uint32_t counting[MAX_RANKS], counted[MAX_RANKS];
};

static bool is(pointsman_bytes name, const char *word) {
  return name.length == strlen(word) && memcmp(name.data, word, name.length) == 0;
}

static pointsman_bytes bytes(const char *word) { return (pointsman_bytes){word, strlen(word)}; }

/* A code, with words for people. */
static int32_t say(int32_t code, pointsman_message *message, const char *words) {
  if (message != NULL) {
    size_t length = strlen(words);
    message->length = length < message->capacity ? length : message->capacity;
    memcpy(message->data, words, message->length);
  }
  return code;
}

static int32_t open_engine(pointsman_bytes config, pointsman_engine **out, pointsman_message *message) {
  /* {"name": …, "url": …, "config": {"ranks": N}}. A real driver takes a JSON parser; this one looks for
   * "ranks": N. */
  unsigned ranks = 1;
  char text[1024];
  if (config.length >= sizeof text) return say(POINTSMAN_INVALID, message, "config: wanted less than 1024 bytes");
  memcpy(text, config.data, config.length);
  text[config.length] = '\0';
  const char *wanted = strstr(text, "\"ranks\"");
  if (wanted != NULL && sscanf(wanted, "\"ranks\" : %u", &ranks) != 1)
    return say(POINTSMAN_INVALID, message, "config: wanted {\"ranks\": N}");
  if (ranks < 1 || ranks > MAX_RANKS) return say(POINTSMAN_INVALID, message, "ranks: wanted 1 to 64");

  pointsman_engine *engine = calloc(1, sizeof *engine);
  if (engine == NULL) return say(POINTSMAN_UNAVAILABLE, message, "no memory");
  engine->ranks = ranks;
  for (uint32_t rank = 0; rank < ranks; rank++)
    for (int i = 0; i < KNOBS; i++) engine->knobs[rank][i] = SETTINGS[i].initial;
  *out = engine;
  return POINTSMAN_OK;
}

static void close_engine(pointsman_engine *engine) { free(engine); }

static int32_t ranks(pointsman_engine *engine, uint32_t *out, pointsman_message *message) {
  (void)message;
  *out = engine->ranks;
  return POINTSMAN_OK;
}

static int32_t knobs(pointsman_engine *engine, uint32_t rank, pointsman_knob *out, size_t capacity,
                     size_t *count, pointsman_message *message) {
  (void)message;
  if (rank >= engine->ranks) return POINTSMAN_UNKNOWN;
  *count = capacity < KNOBS ? capacity : KNOBS;
  for (size_t i = 0; i < *count; i++)
    out[i] = (pointsman_knob){bytes(SETTINGS[i].name), bytes(SETTINGS[i].unit), SETTINGS[i].low,
                              SETTINGS[i].high, engine->knobs[rank][i]};
  return POINTSMAN_OK;
}

static int find(pointsman_bytes name) {
  for (int i = 0; i < KNOBS; i++)
    if (is(name, SETTINGS[i].name)) return i;
  return -1;
}

static int32_t knob_get(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, int64_t *value,
                        pointsman_message *message) {
  (void)message;
  int knob = find(name);
  if (knob < 0 || rank >= engine->ranks) return POINTSMAN_UNKNOWN;
  *value = engine->knobs[rank][knob];
  return POINTSMAN_OK;
}

static int32_t knob_set(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, int64_t value,
                        pointsman_message *message) {
  int knob = find(name);
  bool all = rank == POINTSMAN_ALL_RANKS;
  if (knob < 0 || (!all && rank >= engine->ranks)) return POINTSMAN_UNKNOWN;
  if (value < SETTINGS[knob].low || value > SETTINGS[knob].high) {
    char words[128];
    snprintf(words, sizeof words, "%s: wanted %lld to %lld, found %lld", SETTINGS[knob].name,
             (long long)SETTINGS[knob].low, (long long)SETTINGS[knob].high, (long long)value);
    return say(POINTSMAN_INVALID, message, words);
  }
  for (uint32_t r = all ? 0 : rank; r < (all ? engine->ranks : rank + 1); r++) {
    engine->knobs[r][knob] = value;
    engine->counting[r] += engine->profiling;
  }
  return POINTSMAN_OK;
}

static int32_t stat(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, double *value,
                    pointsman_message *message) {
  (void)message;
  if (rank >= engine->ranks || !is(name, "profile_windows")) return POINTSMAN_UNKNOWN;
  *value = engine->windows;
  return POINTSMAN_OK;
}

static int64_t now(void) {
  struct timespec t;
  timespec_get(&t, TIME_UTC);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int32_t profile_start(pointsman_engine *engine, pointsman_message *message) {
  if (engine->profiling) return say(POINTSMAN_UNAVAILABLE, message, "a window is open already");
  engine->profiling = true;
  engine->began = now();
  memset(engine->counting, 0, sizeof engine->counting);
  return POINTSMAN_OK;
}

static int32_t profile_stop(pointsman_engine *engine, pointsman_message *message) {
  if (!engine->profiling) return say(POINTSMAN_UNAVAILABLE, message, "no window is open");
  engine->profiling = false;
  engine->windows += 1;
  engine->from = engine->began;
  engine->until = now();
  memcpy(engine->counted, engine->counting, sizeof engine->counted);
  char words[64];
  snprintf(words, sizeof words, "{\"duration_us\": %lld}", (long long)(engine->until - engine->from));
  return say(POINTSMAN_OK, message, words);
}

/* A rank's trace: one slice as long as the window, and what is counted. Yours would be the scheduler's own
 * record of its steps, kept from `profile_stop` on, and copied from here. */
static int32_t profile_read(pointsman_engine *engine, uint32_t rank, uint64_t offset, char *buffer,
                            size_t capacity, size_t *length, pointsman_message *message) {
  (void)message;
  if (rank >= engine->ranks || engine->windows == 0) return POINTSMAN_UNKNOWN;
  char trace[512];
  int all = snprintf(
      trace, sizeof trace,
      "{\"traceEvents\": [\n"
      "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": %u, \"args\": {\"name\": \"rank %u\"}},\n"
      "{\"ph\": \"X\", \"name\": \"window\", \"pid\": 1, \"tid\": %u, \"ts\": %lld, \"dur\": %lld},\n"
      "{\"ph\": \"C\", \"name\": \"knobs set\", \"pid\": 1, \"tid\": %u, \"ts\": %lld, \"args\": {\"knobs\": %u}}\n"
      "]}\n",
      rank, rank, rank, (long long)engine->from, (long long)(engine->until - engine->from), rank,
      (long long)engine->until, engine->counted[rank]);
  size_t rest = offset < (uint64_t)all ? (size_t)((uint64_t)all - offset) : 0;
  *length = rest < capacity ? rest : capacity;
  memcpy(buffer, trace + (all - rest), *length);
  return POINTSMAN_OK;
}

static int32_t kernels(pointsman_engine *engine, uint32_t rank, pointsman_bytes operation,
                       pointsman_kernel *out, size_t capacity, size_t *count, pointsman_message *message) {
  (void)message;
  if (rank >= engine->ranks || !is(operation, "bmm")) return POINTSMAN_UNKNOWN;
  *count = capacity < KERNELS ? capacity : KERNELS;
  for (size_t i = 0; i < *count; i++)
    out[i] = (pointsman_kernel){bytes(VARIANTS[i].name), VARIANTS[i].low_m, VARIANTS[i].high_m,
                                1, engine->chosen[rank] == i, 0};
  return POINTSMAN_OK;
}

static int32_t kernel_choose(pointsman_engine *engine, uint32_t rank, pointsman_bytes operation,
                             pointsman_bytes name, uint32_t low_m, uint32_t high_m,
                             pointsman_message *message) {
  bool all = rank == POINTSMAN_ALL_RANKS;
  if (!is(operation, "bmm") || (!all && rank >= engine->ranks)) return POINTSMAN_UNKNOWN;
  for (uint32_t i = 0; i < KERNELS; i++) {
    if (!is(name, VARIANTS[i].name)) continue;
    if (low_m < VARIANTS[i].low_m || high_m > VARIANTS[i].high_m || low_m > high_m)
      return say(POINTSMAN_INVALID, message, "rows outside of what this kernel computes");
    for (uint32_t r = all ? 0 : rank; r < (all ? engine->ranks : rank + 1); r++) engine->chosen[r] = i;
    return POINTSMAN_OK;
  }
  return POINTSMAN_UNKNOWN;
}

const pointsman_engine_v1_table *pointsman_engine_v1(void) {
  static const pointsman_engine_v1_table table = {
      .size = sizeof table,
      .version = POINTSMAN_ENGINE_VERSION,
      .open = open_engine,
      .close = close_engine,
      .ranks = ranks,
      .knobs = knobs,
      .knob_get = knob_get,
      .knob_set = knob_set,
      .stat = stat,
      .profile_start = profile_start,
      .profile_stop = profile_stop,
      .kernels = kernels,
      .kernel_choose = kernel_choose,
      .profile_read = profile_read,
  };
  return &table;
}
