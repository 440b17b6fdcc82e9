/* A driver that opens only if it is told which engine it drives, and writes what it is set to into a
 * file. URL and FOLDER are given when it is compiled. */
#include "pointsman_engine.h"

#include <stdio.h>
#include <string.h>

static int64_t interval;
static int only;

static int has(pointsman_bytes text, const char *part) {
  return memmem(text.data, text.length, part, strlen(part)) != NULL;
}

static int32_t open_engine(pointsman_bytes config, pointsman_engine **out, pointsman_message *message) {
  (void)message;
  *out = (pointsman_engine *)&only;
  return has(config, "\"name\":\"a\"") && has(config, "\"url\":\"" URL "\"") && has(config, "\"mine\":3")
             ? POINTSMAN_OK
             : POINTSMAN_INVALID;
}

static void close_engine(pointsman_engine *engine) { (void)engine; }

static int32_t ranks(pointsman_engine *engine, uint32_t *out, pointsman_message *message) {
  (void)engine, (void)message;
  *out = 1;
  return POINTSMAN_OK;
}

static int32_t knobs(pointsman_engine *engine, uint32_t rank, pointsman_knob *out, size_t capacity,
                     size_t *count, pointsman_message *message) {
  (void)engine, (void)rank, (void)capacity, (void)message;
  out[0] = (pointsman_knob){{"prefill_decode_interval", 23}, {"ticks", 5}, 0, 100, interval};
  *count = 1;
  return POINTSMAN_OK;
}

static int32_t knob_get(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, int64_t *value,
                        pointsman_message *message) {
  (void)engine, (void)rank, (void)name, (void)message;
  *value = interval;
  return POINTSMAN_OK;
}

static int32_t knob_set(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, int64_t value,
                        pointsman_message *message) {
  (void)engine, (void)rank, (void)name, (void)message;
  FILE *file = fopen(FOLDER "/saying", "w");
  if (file == NULL) return POINTSMAN_UNAVAILABLE;
  fprintf(file, "%lld", (long long)value);
  fclose(file);
  interval = value;
  /* Whole, or not there. */
  return rename(FOLDER "/saying", FOLDER "/said") == 0 ? POINTSMAN_OK : POINTSMAN_UNAVAILABLE;
}

static int32_t stat(pointsman_engine *engine, uint32_t rank, pointsman_bytes name, double *value,
                    pointsman_message *message) {
  (void)engine, (void)rank, (void)name, (void)value, (void)message;
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
  };
  return &table;
}
