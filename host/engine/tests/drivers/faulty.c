/* A driver with one fault, chosen when it is compiled: -DFAULT_… */
#include "pointsman_engine.h"

#include <string.h>
#include <unistd.h>

#ifdef FAULT_NO_SYMBOL
#define pointsman_engine_v1 pointsman_engine_v2
const pointsman_engine_v1_table *pointsman_engine_v2(void);
#endif

static int engine;

static int32_t open_engine(pointsman_bytes config, pointsman_engine **out, pointsman_message *message) {
  (void)config, (void)message;
#ifdef FAULT_OPEN_REFUSES
  memcpy(message->data, "no such device", message->length = 14);
  return POINTSMAN_INVALID;
#endif
  *out = (pointsman_engine *)&engine;
#ifdef FAULT_NO_HANDLE
  *out = NULL;
#endif
  return POINTSMAN_OK;
}

static void close_engine(pointsman_engine *e) {
  (void)e;
#ifdef FAULT_HANG_IN_CLOSE
  for (;;) pause();
#endif
#ifdef FAULT_SAYS_CLOSED
  if (write(2, "the driver is closed\n", 21) != 21) return;
#endif
}

static int32_t ranks(pointsman_engine *e, uint32_t *out, pointsman_message *message) {
  (void)e, (void)message;
#ifdef FAULT_HANG_IN_RANKS
  for (;;) pause();
#endif
#ifdef FAULT_NO_RANKS
  *out = 0;
#else
  *out = 1;
#endif
  return POINTSMAN_OK;
}

static int32_t knobs(pointsman_engine *e, uint32_t rank, pointsman_knob *out, size_t capacity,
                     size_t *count, pointsman_message *message) {
  (void)e, (void)rank, (void)capacity, (void)message;
  out[0] = (pointsman_knob){{"depth", 5}, {"", 0}, 0, 9, 1};
  *count = 1;
#ifdef FAULT_GARBAGE_COUNT
  *count = SIZE_MAX;
#endif
#ifdef FAULT_GARBAGE_LENGTH
  out[0].name.length = SIZE_MAX / 2;
#endif
#ifdef FAULT_NULL_TEXT
  out[0].unit = (pointsman_bytes){NULL, 7};
#endif
#ifdef FAULT_NOT_UTF8
  out[0].unit = (pointsman_bytes){"\xff\xfe", 2};
#endif
#ifdef FAULT_CONTROL_IN_NAME
  out[0].name = (pointsman_bytes){"de\033[2Jpth", 9};
#endif
#ifdef FAULT_NO_RANGE
  out[0].low = 9, out[0].high = 0;
#endif
#ifdef FAULT_OUT_OF_RANGE
  out[0].value = 10;
#endif
#ifdef FAULT_COUNTS_MORE_THAN_IT_WRITES
  *count = 3;
#endif
  return POINTSMAN_OK;
}

static int32_t knob_get(pointsman_engine *e, uint32_t rank, pointsman_bytes name, int64_t *value,
                        pointsman_message *message) {
  (void)e, (void)rank, (void)name, (void)message;
  *value = 1;
#ifdef FAULT_ERROR_CODE
  memcpy(message->data, "the engine is on fire", message->length = 21);
  return POINTSMAN_UNAVAILABLE;
#endif
#ifdef FAULT_CONTROL_IN_MESSAGE
  memcpy(message->data, "on\033[2J\nfire", message->length = 11);
  return POINTSMAN_UNAVAILABLE;
#endif
#ifdef FAULT_UNKNOWN_CODE
  return -77;
#endif
#ifdef FAULT_GARBAGE_MESSAGE
  memset(message->data, '\xff', message->capacity);
  message->length = SIZE_MAX;
  return POINTSMAN_UNAVAILABLE;
#endif
#ifdef FAULT_SILENT_ERROR
  return POINTSMAN_UNAVAILABLE;
#endif
#ifdef FAULT_HANG
  for (;;) pause();
#endif
  return POINTSMAN_OK;
}

static int32_t knob_set(pointsman_engine *e, uint32_t rank, pointsman_bytes name, int64_t value,
                        pointsman_message *message) {
  (void)e, (void)rank, (void)name, (void)value, (void)message;
  return POINTSMAN_OK;
}

static int32_t stat(pointsman_engine *e, uint32_t rank, pointsman_bytes name, double *value,
                    pointsman_message *message) {
  (void)e, (void)rank, (void)name, (void)message;
  *value = 1;
  return POINTSMAN_OK;
}

static int32_t profile_start(pointsman_engine *e, pointsman_message *message) {
  (void)e, (void)message;
  return POINTSMAN_OK;
}

static int32_t profile_stop(pointsman_engine *e, pointsman_message *message) {
  (void)e, (void)message;
#ifdef FAULT_HANG_IN_STOP
  for (;;) pause();
#endif
  return POINTSMAN_OK;
}

static int32_t profile_read(pointsman_engine *e, uint32_t rank, uint64_t offset, char *buffer,
                            size_t capacity, size_t *length, pointsman_message *message) {
  (void)e, (void)rank, (void)message, (void)capacity;
#ifdef FAULT_TRACE_LENGTH
  *length = SIZE_MAX - offset;
  return POINTSMAN_OK;
#endif
#ifdef FAULT_TRACE_ERROR
  if (offset > 0) {
    memcpy(message->data, "the trace is gone", message->length = 17);
    return POINTSMAN_UNAVAILABLE;
  }
#endif
#ifdef FAULT_TRACE_ENDLESS
  memset(buffer, '[', *length = capacity);
  return POINTSMAN_OK;
#endif
#ifdef FAULT_TRACE_UNSET
  return POINTSMAN_OK;
#endif
  /* One byte at a time: a piece may be as short as the driver likes. */
  static const char trace[] = "{\"traceEvents\": []}";
  *length = offset < sizeof trace - 1;
  if (*length) buffer[0] = trace[offset];
  return POINTSMAN_OK;
}

const pointsman_engine_v1_table *pointsman_engine_v1(void) {
  static pointsman_engine_v1_table table = {
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
      .profile_read = profile_read,
  };
#ifdef FAULT_VERSION
  table.version = 7;
#endif
#ifdef FAULT_SHORT_TABLE
  table.size = offsetof(pointsman_engine_v1_table, stat);
#endif
#ifdef FAULT_OLD_TABLE
  /* Ends with what every driver has; what lies behind it must not be looked at. */
  table.size = offsetof(pointsman_engine_v1_table, profile_start);
  table.profile_start = (void *)1;
#endif
#ifdef FAULT_TABLE_WITHOUT_TRACES
  /* As compiled against the header before `profile_read`. */
  table.size = offsetof(pointsman_engine_v1_table, profile_read);
  table.profile_read = (void *)1;
#endif
#ifdef FAULT_NEWER_TABLE
  table.size = sizeof table + 800;
#endif
#ifdef FAULT_MISSING_FUNCTION
  table.knob_set = NULL;
#endif
#ifdef FAULT_NO_TABLE
  return NULL;
#endif
  return &table;
}
