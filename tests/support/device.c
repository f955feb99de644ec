#include "device.h"

#include "support.h"

#include "backend/cuda/cuda.h"

void sl_test_need_device(void)
{
    sl_cuda_info info;
    sl_error err;
    if (sl_cuda_query(0, &info, &err) == SL_OK)
        return;
    print_message("skipped: %s\n", err.message);
    skip();
}
