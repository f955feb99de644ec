/* Normalisation form C, as the Hugging Face tokenizers library sees it (Unicode 9.0; characters of
 * later versions stay as they are), in time linear in the text. */
#ifndef SL_TEXT_NFC_H
#define SL_TEXT_NFC_H

#include "base/buf.h"
#include "base/str.h"

/* *result is text itself when it is in the form already, else the new content of *buf. The text is
 * valid UTF-8. */
sl_status sl_nfc(const char *text, size_t n, sl_buf *buf, sl_str *result, sl_error *err);

#endif
