// Holds the precompiled header that the folders share.
