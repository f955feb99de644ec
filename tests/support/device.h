/* For tests that need a CUDA device. */
#ifndef SL_TESTS_DEVICE_H
#define SL_TESTS_DEVICE_H

/* Skips the test, with the reason, where the first CUDA device cannot be used. */
void sl_test_need_device(void);

#endif
