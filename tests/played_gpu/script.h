/* The script that a played node follows: lines "KEY VALUE" in FOLDER/script, read again whenever the file was replaced. */
#ifndef SCRIPT_H
#define SCRIPT_H

#include <stddef.h>

/* The value of a key, copied into the buffer; 0 if it has none. */
int script_text(const char *key, char *buffer, size_t size);

/* Reads the script again if it was replaced. False if there is none: a node without a driver. */
int script_refresh(void);

/* FOLDER, from the variable WHICHRANK_PLAYED_GPU. */
const char *script_folder(void);

#endif
