/* Folder: what durable storage needs beyond single files: syncing, publishing and removing whole folders.
 *
 * 1. A published folder is complete or absent under its name. If a folder is replaced, a reader sees the old
 *    folder or the new one.
 * 2. Removing never follows a symbolic link. */
#ifndef BASE_FOLDER_H
#define BASE_FOLDER_H

/* Where runs are: $BRIM_RUNS, or "runs". */
const char *folder_of_runs(void);

/* Makes the names in a folder survive a power cut. Negative after err_set(). */
int folder_sync(const char *path);

/* Renames tmp to path, in the same parent, and syncs the parent. A folder already under path is replaced and
 * removed. Negative after err_set(): then path is the old folder or, if only the syncing or the removing
 * failed, the new folder. */
int folder_publish(const char *tmp, const char *path);

/* Makes a folder that the user named for results. *is_new: a command that fails removes it again. A path that
 * cannot be one is the user's: negative after err_user(). */
int folder_make_out(const char *path, int *is_new);

/* Removes what killed processes left in a folder: files and folders named PREFIX and the number of a process
 * that lives no more. What cannot be removed stays. */
void folder_sweep(const char *path, const char *prefix);

/* Removes path and everything in it; nothing to do when it is absent. Negative after err_set(). */
int folder_remove(const char *path);

#endif
