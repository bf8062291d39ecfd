// Members of a GGUF file's configuration whose names do not depend on the architecture. Private to expert/.
#ifndef EXPERTD_EXPERT_FOREIGN_GGUF_MEMBERS_H
#define EXPERTD_EXPERT_FOREIGN_GGUF_MEMBERS_H

#define GGUF_WIDTH_MEMBER "moe_intermediate_size"                  // of the experts
#define GGUF_SHARED_WIDTH_MEMBER "shared_expert_intermediate_size" // of the shared expert; 0: none

#endif
