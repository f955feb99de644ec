/* The commands, one file each. */
#ifndef SL_CLI_COMMANDS_H
#define SL_CLI_COMMANDS_H

#include "opts.h"

extern const sl_command sl_command_run;
extern const sl_command sl_command_serve;
extern const sl_command sl_command_info;
extern const sl_command sl_command_tokenize;
extern const sl_command sl_command_logits;
extern const sl_command sl_command_parity;
extern const sl_command sl_command_bench;
extern const sl_command sl_command_profile;
extern const sl_command sl_command_doctor;

#endif
