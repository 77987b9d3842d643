#define RACE_TESTS
