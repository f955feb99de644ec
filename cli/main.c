#include <stdio.h>

#include "sluice.h"

int main(void)
{
    printf("sluice %s\n", sl_version());
    return 0;
}
